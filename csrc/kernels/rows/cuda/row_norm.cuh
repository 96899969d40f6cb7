// The parts of a norm, for the operators that end in one: see row.cuh.
#pragma once

#include <type_traits>

#include "core/types.h"
#include "kernels/rows/cuda/row.cuh"

namespace decoding::cuda {

// Two passes: the mean first, so that the squares of a row far from zero do not cancel. In float32
// what the rounded mean leaves is taken off too (Chan, Golub and LeVeque 1983); two-byte numbers
// are too coarse for that to show. An RMS norm has 0 in the mean's place.
template <typename T>
struct Standardize {
  using First = Sum;
  static constexpr int kSums = sizeof(T) == 4 ? 2 : 1;
  float cols, share, eps;  // share: 1 / cols
  bool rms;

  __device__ __forceinline__ bool has_center() const { return !rms; }
  __device__ __forceinline__ float center(float sum) const { return rms ? 0.0f : sum / cols; }
  __device__ __forceinline__ static void weigh(float& x, float mean, float (&sums)[kSums]) {
    x -= mean;
    sums[0] = fmaf(x, x, sums[0]);
    if constexpr (kSums == 2) sums[1] += x;
  }
  __device__ __forceinline__ Line line(const float (&sums)[kSums]) const {
    const float left = kSums == 2 && !rms ? sums[kSums - 1] * share : 0.0f;
    float variance = sums[0] * share - left * left;
    if (variance < 0.0f) variance = 0.0f;  // rounding; NaN stays
    const float factor = rsqrtf(variance + eps);
    return {factor, kSums == 2 ? -left * factor : 0.0f};
  }
};

// y = x * gamma + beta, + residual with `adds`
template <typename T, int pack, bool adds>
struct StoreAffine {
  static constexpr bool kAdds = adds;
  using Raw = std::conditional_t<adds, Packed<T, pack>, Nothing>;
  struct Columns {
    Floats<pack> gamma, beta;
  };
  Weight<const T> gamma;  // [cols], 1 where null
  Weight<const T> beta;   // [cols], may be null
  const T* residual;      // [rows, cols]
  StoreRows<T, pack> rows;
  float* mean = nullptr;  // [rows], may be null
  float* rstd = nullptr;  // [rows], may be null

  __device__ __forceinline__ Columns columns(int col) const {
    return {load_weight<pack>(gamma, col, 1.0f), load_weight<pack>(beta, col, 0.0f)};
  }
  // The row's mean was center - g / f, and its factor f.
  __device__ __forceinline__ void keep(int row, float center, const Line& line) const {
    if (mean != nullptr) mean[row] = line.g == 0.0f ? center : center - line.g / line.f;
    if (rstd != nullptr) rstd[row] = line.f;
  }
  __device__ __forceinline__ Raw fetch(int row, int col) const {
    if constexpr (adds) return Raw::load(residual + int64_t{row} * rows.cols + col);
    return Raw{};
  }
  __device__ __forceinline__ void store(int row, int col, const Columns& columns, const Raw& raw,
                                        float (&x)[pack]) const {
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      x[i] = fmaf(x[i], columns.gamma.values[i], columns.beta.values[i]);
    }
    if constexpr (adds) {
      float more[pack];
      raw.unpack(more);
#pragma unroll
      for (int i = 0; i < pack; ++i) x[i] += more[i];
    }
    rows.store(row, col, {}, {}, x);
  }
};

template <typename T>
Standardize<T> standardize(int cols, double eps, bool rms) {
  return {static_cast<float>(cols), 1.0f / cols, static_cast<float>(eps), rms};
}

inline bool aligned16(const Norm& norm) {
  return aligned16<float>(norm.gamma, 0) && aligned16<float>(norm.beta, 0);
}

// norm(load(row)) into y, [rows, cols]; + residual, of the same shape, with `adds`.
template <bool adds = false, typename T, typename Load>
auto row_norm(const Load& load, const Norm& norm, T* y, int cols, const T* residual = nullptr) {
  using Store = StoreAffine<T, Load::kPack, adds>;
  const auto weight = [](const float* data) { return Weight<const T>{.wide = data}; };
  return RowOp<Load, Standardize<T>, Store>{
      load,
      standardize<T>(cols, norm.eps, norm.rms),
      {weight(norm.gamma), weight(norm.beta), residual, {y, cols}}};
}

}  // namespace decoding::cuda
