// q = int8(f(x)), row by row, where f is what stands before a product: a norm, or the activation of
// a feed-forward block, with its gate.
#pragma once

#include "core/types.h"
#include "kernels/cuda/stream.h"

namespace decoding::cuda {

template <typename T>
struct QuantizeParams {
  const T* x;      // [rows, cols], 16-byte aligned; gated: [rows, 2 cols], gate, then up
  Norm norm = {};  // or
  Activation activation = Activation::none;
  bool gated = false;   // f(x) = activation(gate) * up
  T* normed = nullptr;  // [rows, cols], takes norm(x); may be null
  QuantizedRows y;
  int rows, cols;  // cols: a multiple of 16, at most kMostQuantizedInputs
};

template <typename T>
void quantize(Stream& stream, const QuantizeParams<T>& p);

}  // namespace decoding::cuda
