// y = activation(x), between the products of a feed-forward block.
#pragma once

#include "core/types.h"

namespace decoding::cuda {

// The formulas of kernels/cpu/activate.h, for a result of T. NaN passes through all of them.
template <typename T, Activation activation>
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

// For a result in 16 bits, to 1e-5 of its value: e^x and quotients by the hardware's instructions.
//
//   gelu(x) = x erfc(-x / sqrt(2)) / 2, with erfc(z) = t exp(p(t) - z^2), t = 1 / (1 + z / 2)
//   gelu_tanh(x) = x / (1 + exp(-2 u)), since (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))
//
// p is fitted to log(erfc(z) / t) + z^2 for z from 0 to 6.
template <typename T, Activation activation>
  requires(sizeof(T) == 2)
__device__ __forceinline__ float activate(float x) {
  if constexpr (activation == Activation::relu) return x < 0.0f ? 0.0f : x;
  if constexpr (activation == Activation::gelu) {
    const float z = 0.707106781f * fabsf(x), t = __fdividef(1.0f, fmaf(0.5f, z, 1.0f));
    constexpr float kCoefficients[] = {0.226430953f, -0.701188982f, 0.463984579f,
                                       0.261090159f, 1.01600003f,   -1.26630962f};
    float p = 0.0f;
#pragma unroll
    for (const float coefficient : kCoefficients) p = fmaf(p, t, coefficient);
    const float half_erfc = 0.5f * t * __expf(fmaf(-z, z, p));
    return x * (x < 0.0f ? half_erfc : 1.0f - half_erfc);
  }
  if constexpr (activation == Activation::silu) return __fdividef(x, 1.0f + __expf(-x));
  if constexpr (activation == Activation::sigmoid) return __fdividef(1.0f, 1.0f + __expf(-x));
  if constexpr (activation == Activation::gelu_tanh) {
    const float u = 0.797884561f * fmaf(0.044715f * x * x, x, x);
    return __fdividef(x, 1.0f + __expf(-2.0f * u));
  }
  return x;
}

// The kind is hidden from the compiler between the questions, or it would make a jump through a
// table of them, whose first access takes as long as all else that a small kernel does.
template <typename T>
__device__ __forceinline__ float activate(float x, Activation activation) {
  int kind = static_cast<int>(activation);
  const auto is = [&](Activation other) {
    const bool same = kind == static_cast<int>(other);
    asm("" : "+r"(kind));
    return same;
  };
  if (is(Activation::none)) return x;
  if (is(Activation::relu)) return activate<T, Activation::relu>(x);
  if (is(Activation::gelu)) return activate<T, Activation::gelu>(x);
  if (is(Activation::silu)) return activate<T, Activation::silu>(x);
  if (is(Activation::sigmoid)) return activate<T, Activation::sigmoid>(x);
  return activate<T, Activation::gelu_tanh>(x);
}

// Of several numbers, for which the kind is asked once.
template <typename T, int count>
__device__ __forceinline__ void activate(float (&x)[count], Activation activation) {
  int kind = static_cast<int>(activation);
  const auto tries = [&]<Activation which>() {
    const bool same = kind == static_cast<int>(which);
    asm("" : "+r"(kind));
    if (!same) return;
#pragma unroll
    for (float& value : x) value = activate<T, which>(value);
  };
  tries.template operator()<Activation::relu>();
  tries.template operator()<Activation::gelu>();
  tries.template operator()<Activation::silu>();
  tries.template operator()<Activation::sigmoid>();
  tries.template operator()<Activation::gelu_tanh>();
}

}  // namespace decoding::cuda
