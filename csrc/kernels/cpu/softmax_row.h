// Softmax of a row that is all there.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/elements.h"

namespace decoding::cpu {
namespace {

// Columns that are added up apart, so that errors of long sums stay small.
constexpr int kSoftmaxBlock = 512;

// y = softmax(scale * x + bias) of one row; y may alias x, bias may be null.
template <typename T>
void softmax_row(const T* x, const Real<T>* bias, T* y, int cols, Real<T> scale) {
  using Vector = Lanes<T>;
  // Weights wait in y for their sum, unless it would round them.
  constexpr bool kWait = std::is_same_v<T, Real<T>>;
  const auto z = [&](int c, auto... count) {
    const Vector shift = bias != nullptr ? load(bias + c, count...) : Vector{};
    return fma(broadcast(scale), load(x + c, count...), shift);
  };
  const Vector lowest = broadcast(Real<T>(-__builtin_inf()));
  Vector top = lowest;
  for_vectors(cols, [&](int c, auto... count) {
    top = max(first_lanes(z(c, count...), lowest, count...), top);
  });
  // A row of -inf takes exp(-inf - -inf) and becomes NaN; so does one with NaN or +inf.
  const Vector highest = broadcast(max_of(top));
  Vector sum = {};
  for (int begin = 0; begin < cols; begin += kSoftmaxBlock) {
    Vector part = {};
    for_vectors(std::min(kSoftmaxBlock, cols - begin), [&](int i, auto... count) {
      const int c = begin + i;
      const Vector weight = exp(z(c, count...) - highest);
      if constexpr (kWait) store(y + c, weight, count...);
      part += first_lanes(weight, Vector{}, count...);
    });
    sum += part;
  }
  const Vector factor = broadcast(1 / sum_of(sum));
  for_vectors(cols, [&](int c, auto... count) {
    if constexpr (kWait) {
      store(y + c, load(y + c, count...) * factor, count...);
    } else {
      store(y + c, exp(z(c, count...) - highest) * factor, count...);
    }
  });
}

}  // namespace
}  // namespace decoding::cpu
