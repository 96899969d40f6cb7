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
  int32_t* parent_rows;  // [sentences, beams, width], the row of the call that each token extended
  int width;
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

// Writes the path that ends with `end`, last token first.
inline void walk_back(const BeamHistory& history, const Hypothesis& end, int32_t* tokens,
                      int32_t* parent_rows) {
  if (end.length == 0) return;
  int32_t slot = end.slot;
  tokens[end.length - 1] = end.token;
  parent_rows[end.length - 1] = slot;
  for (int t = end.length - 2; t >= 0; --t) {
    tokens[t] = history.tokens[int64_t{t} * history.total_rows + slot];
    slot = history.parents[int64_t{t} * history.total_rows + slot];
    parent_rows[t] = slot;
  }
}

// Only memory that somebody else has written to says otherwise; it must not spoil more.
inline void check_length(int row, int tokens, const Results& out) {
  CHECK(0 <= tokens && tokens <= out.width, "the search's memory is spoilt: row ", row, " has ",
        tokens, " tokens of at most ", out.width);
}

// finished: [sentences, max_finished], best first; the K best of each are taken, where there are so
// many.
inline void fetch_finished(const BeamHistory& history, const Hypothesis* finished, int sentences,
                           int beams, int max_finished, const Results& out) {
  const Hypothesis none{kFillIn, kFillIn, 0, 0, 0};
  for (int row = 0; row < sentences * beams; ++row) {
    const int sentence = row / beams, place = row % beams;
    const Hypothesis& end =
        place < max_finished ? finished[int64_t{sentence} * max_finished + place] : none;
    check_length(row, end.length, out);
    walk_back(history, end, out.tokens + int64_t{row} * out.width,
              out.parent_rows + int64_t{row} * out.width);
    out.lengths[row] = end.length;
    out.scores[row] = end.score;
    out.sums[row] = end.sum;
  }
}

// length: [slots], 0 where a row goes on after `steps` tokens.
inline void fetch_rows(const BeamHistory& history, const int32_t* length, int steps, int sentences,
                       int beams, const Results& out) {
  for (int row = 0; row < sentences * beams; ++row) {
    const int tokens = length[row] > 0 ? length[row] : steps;
    check_length(row, tokens, out);
    for (int t = 0; t < tokens; ++t) {
      out.tokens[int64_t{row} * out.width + t] =
          history.tokens[int64_t{t} * history.total_rows + row];
      out.parent_rows[int64_t{row} * out.width + t] = row;
    }
    out.lengths[row] = tokens;
    out.scores[row] = out.sums[row] = 0.0f;
  }
}

// steps: that were taken, of the history. finished: [B, max_finished], where rows compete.
inline void fetch_results(const BeamHistory& history, const Hypothesis* finished,
                          const int32_t* length, int steps, const Request& request,
                          const Results& out) {
  CHECK(out.width >= steps, "results need ", steps, " columns, got ", out.width);
  const int beams = request.rows_per_sentence, max_finished = request.max_finished();
  if (max_finished > 0) {
    fetch_finished(history, finished, request.sentences(), beams, max_finished, out);
  } else {
    fetch_rows(history, length, steps, request.sentences(), beams, out);
  }
}

}  // namespace decoding
