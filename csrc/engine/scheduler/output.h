// What callers of a scheduler hear of their requests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/search/results.h"

namespace decoding {

enum class OutputKind { tokens, end, cancelled, expired, fault };

// What callers hear of a request: tokens, and at last one of the other kinds.
struct Output {
  int64_t id = 0;
  OutputKind kind = OutputKind::tokens;
  int rows = 0, width = 0;
  std::vector<int32_t> tokens;       // [rows, width]
  std::vector<int32_t> lengths;      // [rows]
  std::vector<float> scores, sums;   // [rows], of an end alone
  std::vector<int32_t> parent_rows;  // [rows, width], of an end alone
  std::string message;               // of a fault

  Output() = default;
  Output(int64_t id, OutputKind kind) : id(id), kind(kind) {}
  // It only grows, so that one which is used again and again allocates nothing in the end.
  void resize(int most_rows, int most_tokens);
  // To be written to.
  Results results();
};

// With how many tokens the first rows all begin; with `from` they do.
int agreed(const Output& paths, int rows, int from);

// The tokens of the first rows, but for as many of each as `told` says, which then counts them in.
// Its width is 0 where there are none.
Output new_tokens(int64_t id, const Output& paths, int rows, std::vector<int>& told);

}  // namespace decoding
