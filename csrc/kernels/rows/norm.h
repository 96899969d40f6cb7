// y = norm(x) + residual, and in training norm(dropout(x + bias) + residual) and its gradients,
// over the last axis; the norms are those of core/types.h, the dropout is dropout.h's.
#pragma once

#include "core/types.h"
#include "kernels/rows/dropout.h"
#include "kernels/rows/weight.h"
#include "kernels/stream.h"

namespace decoding {

template <typename T>
struct LayerNormParams {
  const T* x;  // [rows, cols]
  Norm norm;   // gamma and beta are [cols]
  T* y;        // [rows, cols], may alias x and residual
  int rows, cols;
  const T* residual = nullptr;  // [rows, cols], may be null
};

template <typename T, cpu::Isa isa>
void layer_norm(cpu::Stream<isa>&, const LayerNormParams<T>&);
template <typename T>
void layer_norm(cuda::Stream&, const LayerNormParams<T>&);

// In training s = dropout(x + bias) + residual, rounded to T, and y = norm(s). What gradients need
// of a row is kept: mean(s), and rstd, one over the root in norm(s).
template <typename T>
struct TrainingNormParams {
  const T* x;                   // [rows, cols]
  const T* residual = nullptr;  // [rows, cols], may be null
  Weight<const T> bias = {};    // [cols], may be null
  Weight<const T> gamma = {};   // [cols], 1 where null
  Weight<const T> beta = {};    // [cols], may be null; null with rms
  T* sum = nullptr;             // [rows, cols], may alias x; null where s is x: nothing is added
                                // and nothing dropped
  T* y;                         // [rows, cols]
  Real<T>* mean = nullptr;      // [rows], may be null; null with rms
  Real<T>* rstd = nullptr;      // [rows], may be null
  int rows, cols;
  double eps = 1e-5;
  bool rms = false;
  Dropout dropout = {};
};

template <typename T, cpu::Isa isa>
void training_norm(cpu::Stream<isa>&, const TrainingNormParams<T>&);
template <typename T>
void training_norm(cuda::Stream&, const TrainingNormParams<T>&);

// The gradients of training_norm, with z = (s - mean) * rstd, where an RMS norm has 0 for the mean,
// and g = dy * gamma, all means over the last axis:
//   ds = rstd * (g - mean(g) - z * mean(g * z)) + dsum        an RMS norm is without mean(g)
//   dx = dropout(ds), dresidual = ds
//   dgamma = sum(dy * z), dbeta = sum(dy), dbias = sum(dx)    over the rows
// dsum is the gradient that comes to s from elsewhere. The same shapes give the same bits.
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
  T* dresidual = nullptr;   // [rows, cols]; null where it is dx: nothing dropped
  Weight<T> dgamma, dbeta;  // [cols], may be null
  Weight<T> dbias;          // [cols], may be null
  Real<T>* partial;         // [3, kNormLines, cols], scratch; null where all of these are
  int rows, cols;
  Dropout dropout = {};
};

template <typename T, cpu::Isa isa>
void norm_backward(cpu::Stream<isa>&, const NormBackwardParams<T>&);
template <typename T>
void norm_backward(cuda::Stream&, const NormBackwardParams<T>&);

}  // namespace decoding
