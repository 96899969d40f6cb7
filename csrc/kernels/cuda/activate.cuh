// y = activation(x), between the products of a feed-forward block.
#pragma once

#include "core/types.h"

namespace decoding::cuda {

// The formulas of kernels/cpu/activate.h. NaN passes through all of them.
template <Activation activation>
__device__ __forceinline__ float activate(float x) {
  if constexpr (activation == Activation::relu) return x < 0.0f ? 0.0f : x;
  if constexpr (activation == Activation::gelu) {
    return 0.5f * x * (1.0f + erff(0.707106781f * x));
  }
  if constexpr (activation == Activation::silu) return x / (1.0f + expf(-x));
  if constexpr (activation == Activation::sigmoid) return 1.0f / (1.0f + expf(-x));
  if constexpr (activation == Activation::gelu_tanh) {
    return 0.5f * x * (1.0f + tanhf(0.797884561f * fmaf(0.044715f * x * x, x, x)));
  }
  return x;
}

// The kind is hidden from the compiler between the questions, or it would make a jump through a
// table of them, whose first access takes as long as all else that a small kernel does.
__device__ __forceinline__ float activate(float x, Activation activation) {
  int kind = static_cast<int>(activation);
  const auto is = [&](Activation other) {
    const bool same = kind == static_cast<int>(other);
    asm("" : "+r"(kind));
    return same;
  };
  if (is(Activation::none)) return x;
  if (is(Activation::relu)) return activate<Activation::relu>(x);
  if (is(Activation::gelu)) return activate<Activation::gelu>(x);
  if (is(Activation::silu)) return activate<Activation::silu>(x);
  if (is(Activation::sigmoid)) return activate<Activation::sigmoid>(x);
  return activate<Activation::gelu_tanh>(x);
}

// Of several numbers, for which the kind is asked once.
template <int count>
__device__ __forceinline__ void activate(float (&x)[count], Activation activation) {
  int kind = static_cast<int>(activation);
  const auto tries = [&]<Activation which>() {
    const bool same = kind == static_cast<int>(which);
    asm("" : "+r"(kind));
    if (!same) return;
#pragma unroll
    for (float& value : x) value = activate<which>(value);
  };
  tries.template operator()<Activation::relu>();
  tries.template operator()<Activation::gelu>();
  tries.template operator()<Activation::silu>();
  tries.template operator()<Activation::sigmoid>();
  tries.template operator()<Activation::gelu_tanh>();
}

}  // namespace decoding::cuda
