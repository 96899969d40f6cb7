// Layer norm of one row, for the operators that end in one.
#pragma once

#include "core/types.h"
#include "kernels/cpu/simd.h"

namespace decoding::cpu {
namespace {

// y = (x - mean(x)) / sqrt(var(x) + eps) * gamma + beta; y may alias x. Two passes: the mean first,
// so that the squares of a row far from zero do not cancel.
inline void normalize(const float* x, const Norm& norm, float* y, int cols) {
  Floats sum = {};
  for_vectors(cols, [&](int c, auto... count) { sum += load(x + c, count...); });
  const Floats mean = broadcast(sum_of(sum) / cols);
  Floats squares = {};
  for_vectors(cols, [&](int c, auto... count) {
    Floats centred = load(x + c, count...) - mean;
    ((centred = lane_ids() < count ? centred : broadcast(0.0f)), ...);
    squares = fma(centred, centred, squares);
  });
  const Floats scale = broadcast(1.0f / __builtin_sqrtf(sum_of(squares) / cols + norm.eps));
  for_vectors(cols, [&](int c, auto... count) {
    const Floats shift = norm.beta != nullptr ? load(norm.beta + c, count...) : Floats{};
    store(y + c, fma((load(x + c, count...) - mean) * scale, load(norm.gamma + c, count...), shift),
          count...);
  });
}

}  // namespace
}  // namespace decoding::cpu
