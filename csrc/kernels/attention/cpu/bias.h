// The bias of attention/bias.h, for one query and consecutive keys: x = cap * tanh(x / cap), then
// what depends on the distance alone is added, from a line that queries can share.
#pragma once

#include <algorithm>

#include "kernels/attention/bias.h"
#include "kernels/cpu/simd.h"

namespace decoding::cpu {
namespace {

// line[i], i < count, is added to the score of the i-th key; the first lies `distance` before the
// query. -inf where a window hides the key.
inline void bias_by_distance(const AttentionBias& bias, int head, int distance, int count,
                             float* line) {
  const float slope = bias.slopes != nullptr ? bias.slopes[head] : 0.0f;
  for (int i = 0; i < count; ++i) line[i] = -slope * (distance - i);
  if (bias.table != nullptr) {
    const float* table = bias.table + head * (2 * bias.reach + 1) + bias.reach;
    for (int i = 0; i < count; ++i) {
      line[i] += table[std::clamp(distance - i, -bias.reach, bias.reach)];
    }
  }
  const int hidden = bias.window > 0 ? std::clamp(distance - bias.window + 1, 0, count) : 0;
  std::fill(line, line + hidden, -__builtin_inff());
}

// scores, line: [count], a whole number of vectors.
inline void apply_bias(float cap, const float* line, float* scores, int count) {
  for (int i = 0; i < count; i += kLanes) {
    const Floats x = load(scores + i), b = load(line + i);
    store(scores + i, cap > 0 ? fma(cap, tanh(x / cap), b) : x + b);
  }
}

}  // namespace
}  // namespace decoding::cpu
