// What happens to a finished sum: activation(sum + bias) + residual.
#pragma once

#include "core/types.h"

namespace decoding::cuda {

// The formulas of kernels/cpu/linear.cc. NaN passes through all of them.
__device__ __forceinline__ float activate(float x, Activation activation) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x < 0.0f ? 0.0f : x;
    case Activation::gelu:
      return 0.5f * x * (1.0f + erff(0.707106781f * x));
    case Activation::gelu_tanh:
      return 0.5f * x * (1.0f + tanhf(0.797884561f * fmaf(0.044715f * x * x, x, x)));
    case Activation::silu:
      return x / (1.0f + expf(-x));
  }
  return x;
}

}  // namespace decoding::cuda
