// What callers of a scheduler hear of their requests.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/search/results.h"

namespace decoding {

enum class OutputKind { end, cancelled, expired, fault };

// The end of a request.
struct Output {
  int64_t id = 0;
  OutputKind kind = OutputKind::end;
  int rows = 0, width = 0;           // all else is of `end` alone, but for the message
  std::vector<int32_t> tokens;       // [rows, width]
  std::vector<int32_t> lengths;      // [rows]
  std::vector<float> scores, sums;   // [rows]
  std::vector<int32_t> parent_rows;  // [rows, width]
  std::string message;               // of a fault

  Output() = default;
  Output(int64_t id, OutputKind kind) : id(id), kind(kind) {}
  // It only grows, so that one which is used again and again allocates nothing in the end.
  void resize(int most_rows, int most_tokens);
  // To be written to.
  Results results();
  // The same of another request, in no more memory than its longest row needs.
  Output trimmed(int64_t id) const;
};

// How requests ended that were submitted together: each of them, by its place.
struct BatchOutput {
  int64_t id;  // of the first
  std::vector<Output> ends;

  // The first that has not come to its end, a fault before all others; null: they all have.
  const Output* failed() const;
};

// Tokens of a request that have become certain.
struct NewTokens {
  int64_t id;
  int rows;
  size_t begin;  // among the words: of each row their number, and then themselves
};

// What has happened since callers took outputs last: tokens, and then ends, of single requests and
// of those that were submitted together. A request's tokens come before its end. All is appended to
// a few arrays, whose memory is used again.
struct Outputs {
  std::vector<NewTokens> tokens;
  std::vector<int32_t> words;
  std::vector<Output> ends;
  std::vector<BatchOutput> batches;

  bool empty() const { return tokens.empty() && ends.empty() && batches.empty(); }
  void clear();
  // Appends the tokens of so many rows behind the first `delivered`, if any, and counts them in: a
  // row that has fewer has ended.
  void put_tokens(int64_t id, const Results& certain, int rows, int& delivered);
  // Appends all of `later`, which is empty then.
  void take(Outputs& later);
};

// Requests that were submitted together, until the last of them has ended.
class Batches {
 public:
  void add(int64_t first, int count);
  // Appends the ids of the batch whose first request has this one; else the id itself.
  void append_ids(int64_t id, std::vector<int64_t>& to) const;
  // Takes the ends of such requests out of `made`, which is given the batches that they complete.
  // Appends to `cancelled` the ids of a batch that has a fault: nobody wants the others any more.
  void collect(Outputs& made, std::vector<int64_t>& cancelled);

 private:
  struct Open {
    BatchOutput output;
    int left;
  };
  std::map<int64_t, Open>::iterator batch_of(int64_t id);

  std::map<int64_t, Open> open_;  // by the first id
};

}  // namespace decoding
