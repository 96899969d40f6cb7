// y = activation(norm(x) W^T + bias) + residual with both factors in int8 (W8A8). A kernel before
// the product rounds x, unless the product before has left it rounded: for that one, another kernel
// rounds y. The product has one kernel, so nothing is timed.
#pragma once

#include "kernels/linear/cuda/quantized/gemm_w8a8.h"
#include "kernels/linear/cuda/quantized/quantize.h"
#include "kernels/linear/linear.h"

namespace decoding::cuda {

template <typename T>
void quantized_linear(Stream& stream, const LinearParams<T>& p) {
  if (stream.warming_up()) return;
  const LinearWeight& weight = p.weight;
  if (p.x != nullptr) {
    quantize<T>(stream, {.x = p.x,
                         .norm = p.norm,
                         .normed = p.normed,
                         .y = p.quantized,
                         .rows = p.rows,
                         .cols = weight.inputs});
  }
  const bool gated = p.gated != nullptr;
  T* const y = gated ? p.gated : p.y;
  w8a8_linear<T>(stream, {.x = p.quantized,
                          .weight = weight,
                          .bias = p.bias,
                          .residual = p.residual,
                          .y = y,
                          .rows = p.rows});
  CHECK(p.quantizes_y || (p.activation == Activation::none && !gated),
        "a W8A8 product with an activation rounds its result");
  if (!p.quantizes_y) return;
  quantize<T>(stream, {.x = y,
                       .activation = p.activation,
                       .gated = gated,
                       .y = p.quantized,
                       .rows = p.rows,
                       .cols = gated ? weight.outputs / 2 : weight.outputs});
}

}  // namespace decoding::cuda
