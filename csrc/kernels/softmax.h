// y = softmax(scale * x + bias), over the last axis. Columns of -inf get 0; a row of nothing else
// gets NaN.
#pragma once

#include "kernels/stream.h"

namespace decoding {

template <typename T>
struct SoftmaxParams {
  const T* x;                   // [rows, cols]
  const float* bias = nullptr;  // [cols], may be null
  T* y;                         // [rows, cols], may alias x
  int rows, cols;
  float scale = 1.0f;
};

template <typename T, cpu::Isa isa>
void softmax(cpu::Stream<isa>&, const SoftmaxParams<T>&);
template <typename T>
void softmax(cuda::Stream&, const SoftmaxParams<T>&);

}  // namespace decoding
