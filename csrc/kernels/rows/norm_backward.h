// The gradients of training_norm (norm.h), which normed s to y. With z = (s - mean) * rstd, where
// an RMS norm has 0 for the mean, and g = dy * gamma, all means over the last axis:
//   dx = rstd * (g - mean(g) - z * mean(g * z)) + dsum        an RMS norm is without mean(g)
//   dgamma = sum(dy * z), dbeta = sum(dy), dbias = sum(dx)    over the rows
// dx is the gradient of s, and so of x and the residual; dsum is what comes to s from elsewhere.
// The same shapes give the same bits.
#pragma once

#include "kernels/rows/training.h"
#include "kernels/stream.h"

namespace decoding {

constexpr int kNormLines = 256;  // of totals over a part of the rows, at most

template <typename T>
struct NormBackwardParams {
  const T* s;               // [rows, cols]
  const T* dy;              // [rows, cols]
  const T* dsum = nullptr;  // [rows, cols], may be null
  Weight<const T> gamma;    // [cols], 1 where null
  const Real<T>* mean;      // [rows], null with rms
  const Real<T>* rstd;      // [rows]
  T* dx;                    // [rows, cols]
  Weight<T> dgamma, dbeta;  // [cols], may be null
  Weight<T> dbias;          // [cols], may be null
  Real<T>* partial;         // [3, kNormLines, cols], scratch; null where all of these are
  int rows, cols;
};

template <typename T, cpu::Isa isa>
void norm_backward(cpu::Stream<isa>&, const NormBackwardParams<T>&);
template <typename T>
void norm_backward(cuda::Stream&, const NormBackwardParams<T>&);

}  // namespace decoding
