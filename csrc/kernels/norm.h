// y = (x - mean(x)) / sqrt(var(x) + eps) * gamma + beta, over the last axis.
#pragma once

#include "kernels/stream.h"

namespace decoding {

template <typename T>
struct LayerNormParams {
  const T* x;          // [rows, cols]
  const float* gamma;  // [cols]
  const float* beta;   // [cols], may be null
  T* y;                // [rows, cols], may alias x
  int rows, cols;
  float eps = 1e-5f;
};

template <typename T, cpu::Isa isa>
void layer_norm(cpu::Stream<isa>&, const LayerNormParams<T>&);

}  // namespace decoding
