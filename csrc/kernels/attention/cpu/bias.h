// The rules of attention.h, for one query and keys that follow one another: x = cap * tanh(x /
// cap), then what depends on the distance alone is added, from a line that queries can share.
#pragma once

#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/cpu/simd.h"

namespace decoding::cpu {
namespace {

// bias[i], i < count, of the i-th key; the first lies `distance` before the query. -inf where a
// window hides the key.
inline void bias_by_distance(const ScoreRules& rules, int head, int distance, int count,
                             float* bias) {
  const float slope = rules.slopes != nullptr ? rules.slopes[head] : 0.0f;
  for (int i = 0; i < count; ++i) bias[i] = -slope * (distance - i);
  if (rules.table != nullptr) {
    const float* table = rules.table + head * (2 * rules.reach + 1) + rules.reach;
    for (int i = 0; i < count; ++i) {
      bias[i] += table[std::clamp(distance - i, -rules.reach, rules.reach)];
    }
  }
  const int hidden = rules.window > 0 ? std::clamp(distance - rules.window + 1, 0, count) : 0;
  std::fill(bias, bias + hidden, -__builtin_inff());
}

// Of `count` scores, a whole number of vectors.
inline void apply_rules(float cap, const float* bias, float* scores, int count) {
  for (int i = 0; i < count; i += kLanes) {
    const Floats x = load(scores + i), b = load(bias + i);
    store(scores + i, cap > 0 ? fma(cap, tanh(x / cap), b) : x + b);
  }
}

}  // namespace
}  // namespace decoding::cpu
