// Layer norm of one row, for the operators that end in one.
#pragma once

#include "kernels/cpu/simd.h"

namespace decoding::cpu {
namespace {

// y = (x - mean(x)) / sqrt(var(x) + eps) * gamma + beta; y may alias x, beta may be null. Two
// passes: the mean first, so that the squares of a row far from zero do not cancel.
inline void normalize(const float* x, const float* gamma, const float* beta, float* y, int cols,
                      float eps) {
  Floats sum = {};
  for_vectors(cols, [&](int c, auto... count) { sum += load(x + c, count...); });
  const Floats mean = broadcast(sum_of(sum) / cols);
  Floats squares = {};
  for_vectors(cols, [&](int c, auto... count) {
    Floats centred = load(x + c, count...) - mean;
    ((centred = lane_ids() < count ? centred : broadcast(0.0f)), ...);
    squares = fma(centred, centred, squares);
  });
  const Floats scale = broadcast(1.0f / __builtin_sqrtf(sum_of(squares) / cols + eps));
  for_vectors(cols, [&](int c, auto... count) {
    const Floats shift = beta != nullptr ? load(beta + c, count...) : Floats{};
    store(y + c, fma((load(x + c, count...) - mean) * scale, load(gamma + c, count...), shift),
          count...);
  });
}

}  // namespace
}  // namespace decoding::cpu
