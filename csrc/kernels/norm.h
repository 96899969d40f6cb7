// y = (x - mean(x)) / sqrt(var(x) + eps) * gamma + beta, over the last axis.
#pragma once

#include "core/types.h"
#include "kernels/stream.h"

namespace decoding {

template <typename T>
struct LayerNormParams {
  const T* x;  // [rows, cols]
  Norm norm;   // gamma and beta are [cols]
  T* y;        // [rows, cols], may alias x
  int rows, cols;
};

template <typename T, cpu::Isa isa>
void layer_norm(cpu::Stream<isa>&, const LayerNormParams<T>&);
template <typename T>
void layer_norm(cuda::Stream&, const LayerNormParams<T>&);

}  // namespace decoding
