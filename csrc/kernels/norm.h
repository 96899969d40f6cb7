// y = norm(x) + residual, over the last axis; the norms are those of core/types.h.
#pragma once

#include "core/types.h"
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

}  // namespace decoding
