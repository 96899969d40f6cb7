// From the trellis of a search to rows of tokens.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/session.h"
#include "kernels/search/beam.h"

namespace decoding {

// Each step stores, for every slot, its token and the slot that it extends.
struct Trellis {
  const int32_t* tokens;   // [steps, slots]
  const int32_t* parents;  // [steps, slots]
  int slots;
};

// Writes the path that ends with `end`, last token first.
inline void walk_back(const Trellis& trellis, const Hypothesis& end, int32_t* tokens,
                      int32_t* slots) {
  if (end.length == 0) return;
  int32_t slot = end.slot;
  tokens[end.length - 1] = end.token;
  slots[end.length - 1] = slot;
  for (int t = end.length - 2; t >= 0; --t) {
    tokens[t] = trellis.tokens[int64_t{t} * trellis.slots + slot];
    slot = trellis.parents[int64_t{t} * trellis.slots + slot];
    slots[t] = slot;
  }
}

// Only memory that somebody else has written to says otherwise; it must not spoil more.
inline void check_length(int row, int tokens, const Results& out) {
  CHECK(0 <= tokens && tokens <= out.width, "the search's memory is spoilt: row ", row, " has ",
        tokens, " tokens of at most ", out.width);
}

// finished: [sentences, places], best first; the K best of each are taken, where there are so many.
inline void take_finished(const Trellis& trellis, const Hypothesis* finished, int sentences,
                          int beams, int places, const Results& out) {
  const Hypothesis none{kFillIn, kFillIn, 0, 0, 0};
  for (int row = 0; row < sentences * beams; ++row) {
    const int sentence = row / beams, place = row % beams;
    const Hypothesis& end = place < places ? finished[int64_t{sentence} * places + place] : none;
    check_length(row, end.length, out);
    walk_back(trellis, end, out.tokens + int64_t{row} * out.width,
              out.slots + int64_t{row} * out.width);
    out.lengths[row] = end.length;
    out.scores[row] = end.score;
    out.sums[row] = end.sum;
  }
}

// length: [slots], 0 where a row goes on after `steps` tokens.
inline void take_rows(const Trellis& trellis, const int32_t* length, int steps, int sentences,
                      int beams, const Results& out) {
  for (int row = 0; row < sentences * beams; ++row) {
    const int tokens = length[row] > 0 ? length[row] : steps;
    check_length(row, tokens, out);
    for (int t = 0; t < tokens; ++t) {
      out.tokens[int64_t{row} * out.width + t] = trellis.tokens[int64_t{t} * trellis.slots + row];
      out.slots[int64_t{row} * out.width + t] = row;
    }
    out.lengths[row] = tokens;
    out.scores[row] = out.sums[row] = 0.0f;
  }
}

}  // namespace decoding
