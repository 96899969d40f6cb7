// y = norm(x) + residual, and in training norm(x + bias + residual), over the last axis; the norms
// are those of core/types.h.
#pragma once

#include "core/types.h"
#include "kernels/rows/training.h"
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

// In training s = x + bias + residual, rounded to T, and y = norm(s). What gradients need of a row
// is kept (norm_backward.h): mean(s), and rstd, one over the root in norm(s).
template <typename T>
struct TrainingNormParams {
  const T* x;                   // [rows, cols]
  const T* residual = nullptr;  // [rows, cols], may be null
  Weight<const T> bias = {};    // [cols], may be null
  Weight<const T> gamma = {};   // [cols], 1 where null
  Weight<const T> beta = {};    // [cols], may be null; null with rms
  T* sum = nullptr;             // [rows, cols]; null where s is x: no bias, no residual
  T* y;                         // [rows, cols]
  Real<T>* mean = nullptr;      // [rows], may be null; null with rms
  Real<T>* rstd = nullptr;      // [rows], may be null
  int rows, cols;
  double eps = 1e-5;
  bool rms = false;
};

template <typename T, cpu::Isa isa>
void training_norm(cpu::Stream<isa>&, const TrainingNormParams<T>&);
template <typename T>
void training_norm(cuda::Stream&, const TrainingNormParams<T>&);

}  // namespace decoding
