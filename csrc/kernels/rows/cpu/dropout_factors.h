// The factors of dropout (kernels/rows/dropout.h): 0, or one over the share that is kept.
#pragma once

#include <algorithm>

#include "kernels/cpu/elements.h"
#include "kernels/rows/dropout.h"

namespace decoding::cpu {
namespace {

constexpr int kDrawn = 256;  // factors that are drawn at once

// Those of `count` elements, at most kDrawn, from place `first` on.
template <typename R>
void draw_factors(const Dropout& dropout, uint64_t first, int count, R* factors) {
  uint32_t words[4][kDrawn / 4 + 1];
  const uint64_t seed = dropout.seed();
  const int ahead = static_cast<int>(first % 4);
  for (int block = 0; block * 4 < ahead + count; ++block) {
    uint32_t four[4];
    dropout_words(seed, first / 4 + block, four);
    for (int lane = 0; lane < 4; ++lane) words[lane][block] = four[lane];
  }
  const auto kept = static_cast<R>(dropout.factor);
  for (int i = 0; i < count; ++i) {
    const int place = ahead + i;
    factors[i] = words[place % 4][place / 4] >= dropout.limit ? kept : R(0);
  }
}

// Calls use(i, factors, count...) for all vectors of `size` elements as for_vectors() does; `first`
// is the place of the first.
template <typename T, typename Use>
void for_dropped_vectors(const Dropout& dropout, uint64_t first, int size, Use&& use) {
  if (dropout.limit == 0) {
    const Lanes<T> kept = broadcast(Real<T>(1));
    return for_vectors(size, [&](int i, auto... count) { use(i, kept, count...); });
  }
  Real<T> factors[kDrawn];
  for (int begin = 0; begin < size; begin += kDrawn) {
    const int drawn = std::min(kDrawn, size - begin);
    draw_factors(dropout, first + begin, drawn, factors);
    for_vectors(drawn, [&](int i, auto... count) {
      use(begin + i, load(factors + i, count...), count...);
    });
  }
}

}  // namespace
}  // namespace decoding::cpu
