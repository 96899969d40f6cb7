// What a caller asks for: the rules that every search obeys, and the strategies.
#pragma once

#include <algorithm>
#include <cstdint>
#include <variant>
#include <vector>

#include "kernels/beam.h"

namespace decoding {

// Steps count from 1.
struct Rules {
  int max_new;                        // tokens that a row may have
  int min_new;                        // no EOS as one of the first min_new tokens
  std::vector<int32_t> eos;           // each of them ends a row
  int pad;                            // what an ended row reads while its sentence goes on
  std::vector<int32_t> banned;        // never chosen
  std::vector<int32_t> forced_first;  // where not empty, the only tokens of the first step
  std::vector<int32_t> forced_last;   // and of step max_new
  bool renormalize;                   // what the rules leave adds up to 1 again
};

struct Greedy {};

struct Sampling {
  uint64_t seed;
  float temperature;
  int top_k;    // 0: off
  float top_p;  // 1: off
};

struct Beam {
  double length_penalty;
  EarlyStopping early_stopping;
};

using Search = std::variant<Greedy, Sampling, Beam>;

// Candidates of each row that beam search needs, so that enough of them go on whatever ends.
inline int beam_candidates(const Rules& rules, int beams) {
  return std::max<int>(2, 1 + rules.eos.size()) * beams;
}

}  // namespace decoding
