// The norm of one row, for the operators that end or begin in one.
#pragma once

#include "core/types.h"
#include "kernels/cpu/simd.h"

namespace decoding::cpu {
namespace {

// y = norm(x) + residual; y may alias both, residual may be null. Two passes: the mean first, so
// that the squares of a row far from zero do not cancel. An RMS norm has 0 in the mean's place.
inline void normalize(const float* x, const Norm& norm, float* y, int cols,
                      const float* residual = nullptr) {
  Floats mean = {};
  if (!norm.rms) {
    Floats sum = {};
    for_vectors(cols, [&](int c, auto... count) { sum += load(x + c, count...); });
    mean = broadcast(sum_of(sum) / cols);
  }
  Floats squares = {};
  for_vectors(cols, [&](int c, auto... count) {
    Floats centred = load(x + c, count...) - mean;
    ((centred = lane_ids() < count ? centred : broadcast(0.0f)), ...);
    squares = fma(centred, centred, squares);
  });
  const Floats scale = broadcast(1.0f / __builtin_sqrtf(sum_of(squares) / cols + norm.eps));
  for_vectors(cols, [&](int c, auto... count) {
    const Floats shift = norm.beta != nullptr ? load(norm.beta + c, count...) : Floats{};
    Floats z = fma((load(x + c, count...) - mean) * scale, load(norm.gamma + c, count...), shift);
    if (residual != nullptr) z += load(residual + c, count...);
    store(y + c, z, count...);
  });
}

}  // namespace
}  // namespace decoding::cpu
