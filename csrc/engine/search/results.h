// From the beam history of a search to rows of tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/check.h"
#include "engine/search/request.h"
#include "kernels/search/beam.h"

namespace decoding {

// Where fetch() writes: rows of a sentence best first where they compete (beam search).
struct Results {
  int32_t* tokens;       // [sentences, beams, width]
  int32_t* lengths;      // [sentences, beams]
  float* scores;         // [sentences, beams]
  float* sums;           // [sentences, beams]
  int32_t* parent_rows;  // [sentences, beams, width], the slot that each token extended, counted
                         // from first_slot
  int width;
  int first_slot = 0;
  int from = 0;  // tokens before are known: they need not be written
};

// A view of the bound memory.
struct StateArray {
  std::string name, type;  // type: as Buffer has it
  std::vector<int64_t> shape, strides;
  const void* data;
};
using EngineState = std::vector<StateArray>;

// Each step stores, for every slot, its token and the slot that it extends.
struct BeamHistory {
  const int32_t* tokens;   // [steps, total_rows]
  const int32_t* parents;  // [steps, total_rows]
  int total_rows;
};

// What a search leaves for fetch().
struct SearchResults {
  BeamHistory history;
  const Hypothesis* finished;  // [sentences, max_finished], best first, where rows compete
  const int32_t* length;       // [slots], tokens of a row that has ended, 0 where it goes on
  int beams, max_finished;
};

// Only memory that somebody else has written to says otherwise; it must not spoil more.
inline void check_length(int row, int tokens, const Results& out) {
  CHECK(0 <= tokens && tokens <= out.width, "the search's memory is spoilt: row ", row, " has ",
        tokens, " tokens of at most ", out.width);
}

// Writes the path that ends with `end`, last token first, as row `row` of the results.
inline void fetch_finished(const BeamHistory& history, const Hypothesis& end, int row,
                           const Results& out) {
  check_length(row, end.length, out);
  out.lengths[row] = end.length;
  out.scores[row] = end.score;
  out.sums[row] = end.sum;
  if (end.length == 0) return;
  int32_t* tokens = out.tokens + int64_t{row} * out.width;
  int32_t* parent_rows = out.parent_rows + int64_t{row} * out.width;
  int32_t slot = end.slot;
  tokens[end.length - 1] = end.token;
  parent_rows[end.length - 1] = slot - out.first_slot;
  for (int t = end.length - 2; t >= out.from; --t) {
    tokens[t] = history.tokens[int64_t{t} * history.total_rows + slot];
    slot = history.parents[int64_t{t} * history.total_rows + slot];
    parent_rows[t] = slot - out.first_slot;
  }
}

// What `slot` has generated, as row `row` of the results.
inline void fetch_row(const BeamHistory& history, int slot, int tokens, int row,
                      const Results& out) {
  check_length(row, tokens, out);
  for (int t = out.from; t < tokens; ++t) {
    out.tokens[int64_t{row} * out.width + t] =
        history.tokens[int64_t{t} * history.total_rows + slot];
    out.parent_rows[int64_t{row} * out.width + t] = slot - out.first_slot;
  }
  out.lengths[row] = tokens;
  out.scores[row] = out.sums[row] = 0.0f;
}

// A sentence's rows, from row `first` of the results on; the K best of those that have finished,
// where there are so many. steps: tokens of a row that goes on, and the most of any.
inline void fetch_sentence(const SearchResults& search, int sentence, int steps, int first,
                           const Results& out) {
  const Hypothesis none{kFillIn, kFillIn, 0, 0, 0};
  const Hypothesis* finished = search.finished + int64_t{sentence} * search.max_finished;
  for (int j = 0; j < search.beams; ++j) {
    const int slot = sentence * search.beams + j;
    if (search.max_finished > 0) {
      const Hypothesis& end = j < search.max_finished ? finished[j] : none;
      fetch_finished(search.history, end, first + j, out);
    } else {
      const int ended = search.length[slot];
      fetch_row(search.history, slot, ended > 0 ? std::min(ended, steps) : steps, first + j, out);
    }
  }
}

// With how many tokens of the results' first row, at most `agreed`, the path that ends with `end`
// begins; with out.from it does. It is walked back to the slot that both have in common.
inline int shared_length(const BeamHistory& history, const Hypothesis& end, int agreed,
                         const Results& out) {
  int32_t token = end.token, slot = end.slot;
  agreed = std::min(agreed, end.length);
  for (int t = end.length - 1;; --t) {
    if (token != out.tokens[t]) agreed = std::min(agreed, t);
    if (t <= out.from || slot == out.parent_rows[t] + out.first_slot) return agreed;
    const int64_t at = int64_t{t - 1} * history.total_rows + slot;
    token = history.tokens[at];
    slot = history.parents[at];
  }
}

// What all rows of a sentence that go on after `steps` steps begin with, and all that have
// finished, as row 0 of the results.
inline void fetch_agreed(const SearchResults& search, int sentence, int steps, int finished_count,
                         const Results& out) {
  const Hypothesis* finished = search.finished + int64_t{sentence} * search.max_finished;
  const auto is_early = [&](const Hypothesis& end) {
    return end.length > 0 && end.length <= out.from + 1;  // it has parted there for good
  };
  out.lengths[0] = out.from;
  if (std::any_of(finished, finished + finished_count, is_early)) return;
  const int64_t newest = int64_t{steps - 1} * search.history.total_rows + sentence * search.beams;
  const auto row = [&](int j) -> Hypothesis {
    return {0, 0, steps, search.history.parents[newest + j], search.history.tokens[newest + j]};
  };
  fetch_finished(search.history, row(0), 0, out);
  int agreed = steps;
  for (int j = 1; j < search.beams && agreed > out.from; ++j) {
    agreed = shared_length(search.history, row(j), agreed, out);
  }
  for (int j = 0; j < finished_count && agreed > out.from; ++j) {
    if (finished[j].length == 0) continue;
    check_length(0, finished[j].length, out);
    agreed = shared_length(search.history, finished[j], agreed, out);
  }
  out.lengths[0] = agreed;
}

// The tokens of a sentence that are certain after `steps` steps: those of its rows, or where rows
// compete, as one row, what they agree on. Returns how many rows these are.
inline int fetch_certain(const SearchResults& search, int sentence, int steps, int finished_count,
                         const Results& out) {
  if (search.max_finished > 0) {
    fetch_agreed(search, sentence, steps, finished_count, out);
    return 1;
  }
  fetch_sentence(search, sentence, steps, 0, out);
  return search.beams;
}

// steps: that were taken, of the history.
inline void fetch_results(const BeamHistory& history, const Hypothesis* finished,
                          const int32_t* length, int steps, const Request& request,
                          const Results& out) {
  CHECK(out.width >= steps, "results need ", steps, " columns, got ", out.width);
  const SearchResults search{history, finished, length, request.rows_per_sentence,
                             request.max_finished()};
  for (int b = 0; b < request.sentences(); ++b) {
    fetch_sentence(search, b, steps, b * search.beams, out);
  }
}

}  // namespace decoding
