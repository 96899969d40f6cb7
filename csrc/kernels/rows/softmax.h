// y = softmax(scale * x + bias), over the last axis, and its gradient. Columns of -inf get 0; a row
// of nothing else gets NaN.
#pragma once

#include "core/types.h"
#include "kernels/stream.h"

namespace decoding {

template <typename T>
struct SoftmaxParams {
  const T* x;                     // [rows, cols]
  const Real<T>* bias = nullptr;  // [cols], may be null
  T* y;                           // [rows, cols], may alias x
  int rows, cols;
  float scale = 1.0f;
};

template <typename T, cpu::Isa isa>
void softmax(cpu::Stream<isa>&, const SoftmaxParams<T>&);
template <typename T>
void softmax(cuda::Stream&, const SoftmaxParams<T>&);

// dx = y * (dy - sum(y * dy)), where y = softmax(x)
template <typename T>
struct SoftmaxBackwardParams {
  const T* y;   // [rows, cols]
  const T* dy;  // [rows, cols]
  T* dx;        // [rows, cols], may alias dy
  int rows, cols;
};

template <typename T, cpu::Isa isa>
void softmax_backward(cpu::Stream<isa>&, const SoftmaxBackwardParams<T>&);
template <typename T>
void softmax_backward(cuda::Stream&, const SoftmaxBackwardParams<T>&);

}  // namespace decoding
