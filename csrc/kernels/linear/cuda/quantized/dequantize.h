// to[n, k] = scale[n] W_q[n, k]: a quantized weight in 16 bits, for products of so many rows that
// it pays to widen the weight once. Of large weights some outputs at a time.
#pragma once

#include "kernels/cuda/stream.h"
#include "kernels/linear/linear.h"

namespace decoding::cuda {

// to: [weight.outputs, weight.inputs], on 16 bytes.
template <typename T>
void dequantize(Stream& stream, const LinearWeight& weight, T* to);

}  // namespace decoding::cuda
