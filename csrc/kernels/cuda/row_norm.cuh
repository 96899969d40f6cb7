// The parts of a layer norm, for the operators that end in one: see row.cuh.
#pragma once

#include "core/types.h"
#include "kernels/cuda/row.cuh"

namespace decoding::cuda {

// Two passes: the mean first, so that the squares of a row far from zero do not cancel. In float32
// what the rounded mean leaves is taken off too (Chan, Golub and LeVeque 1983); two-byte numbers
// are too coarse for that to show.
template <typename T>
struct Standardize {
  using First = Sum;
  static constexpr int kSums = sizeof(T) == 4 ? 2 : 1;
  float cols, share, eps;  // share: 1 / cols

  __device__ __forceinline__ float center(float sum) const { return sum / cols; }
  __device__ __forceinline__ static void weigh(float& x, float mean, float (&sums)[kSums]) {
    x -= mean;
    sums[0] = fmaf(x, x, sums[0]);
    if constexpr (kSums == 2) sums[1] += x;
  }
  __device__ __forceinline__ Line line(const float (&sums)[kSums]) const {
    const float left = kSums == 2 ? sums[kSums - 1] * share : 0.0f;
    float variance = sums[0] * share - left * left;
    if (variance < 0.0f) variance = 0.0f;  // rounding; NaN stays
    const float factor = rsqrtf(variance + eps);
    return {factor, kSums == 2 ? -left * factor : 0.0f};
  }
};

// y = x * gamma + beta
template <typename T, int pack>
struct StoreAffine {
  struct Columns {
    Floats<pack> gamma, beta;
  };
  const float* gamma;  // [cols]
  const float* beta;   // [cols], may be null
  StoreRows<T, pack> rows;

  __device__ __forceinline__ Columns columns(int col) const {
    return {Floats<pack>::load(gamma, col), Floats<pack>::load(beta, col)};
  }
  __device__ __forceinline__ void store(int row, int col, const Columns& columns,
                                        float (&x)[pack]) const {
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      x[i] = fmaf(x[i], columns.gamma.values[i], columns.beta.values[i]);
    }
    rows.store(row, col, {}, x);
  }
};

inline bool aligned16(const Norm& norm) {
  return aligned16<float>(norm.gamma, 0) && aligned16<float>(norm.beta, 0);
}

// norm(load(row)) into y, [rows, cols].
template <typename T, typename Load>
auto row_norm(const Load& load, const Norm& norm, T* y, int cols) {
  using Store = StoreAffine<T, Load::kPack>;
  return RowOp<Load, Standardize<T>, Store>{
      load, {static_cast<float>(cols), 1.0f / cols, norm.eps}, {norm.gamma, norm.beta, {y, cols}}};
}

}  // namespace decoding::cuda
