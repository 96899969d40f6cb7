// The parts of a layer norm, for the operators that end in one: see row.cuh.
#pragma once

#include "core/types.h"
#include "kernels/cuda/row.cuh"

namespace decoding::cuda {

// Two passes: the mean first, so that the squares of a row far from zero do not cancel.
struct Standardize {
  using First = Sum;
  int cols;
  float eps;

  __device__ __forceinline__ float center(float sum) const { return sum / cols; }
  __device__ __forceinline__ static float weigh(float& x, float mean) {
    x -= mean;
    return x * x;
  }
  __device__ __forceinline__ float factor(float squares) const {
    return 1.0f / sqrtf(squares / cols + eps);
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
  return RowOp<Load, Standardize, Store>{
      load, {cols, norm.eps}, {norm.gamma, norm.beta, {y, cols}}};
}

}  // namespace decoding::cuda
