// Gumbel noise from counters, group by group (sampling.h has the maths).
//
// A draw looks at little more than the random words: noise falls as words grow, so within a group
// whose largest score is s only words below one limit give the noise above best - s that it takes
// to win. The few tokens that pass get their noise, in double precision.
//
// In an anonymous namespace for the same reason as simd.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/philox.h"
#include "kernels/search/logits.h"

namespace decoding::cpu {
namespace {

constexpr int kCounters = kGroup / 4;  // of a group: each counter gives the words of four tokens

inline double noise(uint32_t word) { return -std::log(-std::log1p(-(word + 0.5) * 0x1p-32)); }

// No word above it has noise of `needed` or more. The exact bound is 1 - e^-z for z = e^-needed;
// this is z, with room for rounding.
inline uint32_t largest_word(double needed) {
  const float word = std::exp(-static_cast<float>(needed)) * 0x1.0001p32f + 1.0f;
  return word < 0x1p32f ? static_cast<uint32_t>(word) : 0xFFFFFFFFu;
}

// The random words of a group's tokens.
struct Words {
  alignas(64) uint32_t of_lane[4][kCounters];  // token 4 * i + lane of the group has [lane][i]

  void draw(uint64_t seed, int step, uint32_t row, int g) {
    const uint32_t first = static_cast<uint32_t>(g) * kCounters;
    for (uint32_t i = 0; i < kCounters; ++i) {
      const auto four = philox(seed, {first + i, static_cast<uint32_t>(step), row, 0});
      for (int lane = 0; lane < 4; ++lane) of_lane[lane][i] = four[lane];
    }
  }
  uint32_t operator[](int token) const { return of_lane[token % 4][token / 4]; }

  bool any_up_to(uint32_t limit) const {
    uint32_t found = 0;
    for (int lane = 0; lane < 4; ++lane) {
      for (int i = 0; i < kCounters; ++i) found |= of_lane[lane][i] <= limit;
    }
    return found;
  }
};

}  // namespace
}  // namespace decoding::cpu
