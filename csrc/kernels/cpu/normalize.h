// The norm of one row, for the operators that end or begin in one.
#pragma once

#include <cmath>

#include "core/types.h"
#include "kernels/cpu/elements.h"

namespace decoding::cpu {
namespace {

// A norm of a row: (x - mean) * rstd.
template <typename R>
struct Moments {
  R mean, rstd;
};

// Two passes: the mean first, so that the squares of a row far from zero do not cancel. An RMS norm
// has 0 in the mean's place.
template <typename T>
inline Moments<Real<T>> moments(const T* x, int cols, Real<T> eps, bool rms) {
  using Vector = Lanes<T>;
  Real<T> mean = 0;
  if (!rms) {
    Vector sum = {};
    for_vectors(cols, [&](int c, auto... count) { sum += load(x + c, count...); });
    mean = sum_of(sum) / cols;
  }
  Vector squares = {};
  for_vectors(cols, [&](int c, auto... count) {
    const Vector centred = first_lanes(load(x + c, count...) - broadcast(mean), Vector{}, count...);
    squares = fma(centred, centred, squares);
  });
  return {mean, 1 / std::sqrt(sum_of(squares) / cols + eps)};
}

// y = norm(x) + residual; y may alias both, residual may be null.
inline void normalize(const float* x, const Norm& norm, float* y, int cols,
                      const float* residual = nullptr) {
  const Moments<float> row = moments(x, cols, norm.eps, norm.rms);
  for_vectors(cols, [&](int c, auto... count) {
    const Floats shift = norm.beta != nullptr ? load(norm.beta + c, count...) : Floats{};
    const Floats centred = (load(x + c, count...) - broadcast(row.mean)) * broadcast(row.rstd);
    Floats z = fma(centred, load(norm.gamma + c, count...), shift);
    if (residual != nullptr) z += load(residual + c, count...);
    store(y + c, z, count...);
  });
}

}  // namespace
}  // namespace decoding::cpu
