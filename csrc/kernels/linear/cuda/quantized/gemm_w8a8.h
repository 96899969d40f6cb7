// A product of int8 on both sides (W8A8), by Hopper's tensor cores:
//
//   y[r, n] = x_scale[r] * scale[n] * sum over k of x[r, k] W_q[n, k] + bias[n] + residual[r, n]
//
// The sums are exact, so a row depends on itself alone.
#pragma once

#include "core/types.h"
#include "kernels/cuda/stream.h"

namespace decoding::cuda {

template <typename T>
struct W8A8Params {
  QuantizedRows x;
  LinearWeight weight;          // of int8; N a multiple of 32
  const float* bias = nullptr;  // [N], may be null
  const T* residual = nullptr;  // [rows, N], may be null
  T* y;                         // [rows, N], may alias residual; 16-byte aligned
  int rows;
};

inline bool multiplies_w8a8(const Device& device) {
  return device.capability == 90 && device.code == 90;
}

template <typename T>
void w8a8_linear(Stream& stream, const W8A8Params<T>& p);

}  // namespace decoding::cuda
