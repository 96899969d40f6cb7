// y = activation(x), between the products of a feed-forward block.
#pragma once

#include "core/types.h"
#include "kernels/cpu/simd.h"

namespace decoding::cpu {
namespace {

template <Activation activation>
Floats activate(Floats x) {
  if constexpr (activation == Activation::relu) return max(broadcast(0.0f), x);
  if constexpr (activation == Activation::gelu) return 0.5f * x * (1.0f + erf(0.707106781f * x));
  if constexpr (activation == Activation::gelu_tanh) {
    return 0.5f * x * (1.0f + tanh(0.797884561f * fma(0.044715f * x * x, x, x)));
  }
  if constexpr (activation == Activation::silu) return x / (1.0f + exp(-x));
  if constexpr (activation == Activation::sigmoid) return 1.0f / (1.0f + exp(-x));
  return x;
}

// Calls use.template operator()<activation>().
template <typename Use>
void with_activation(Activation activation, Use&& use) {
  switch (activation) {
    case Activation::none:
      return use.template operator()<Activation::none>();
    case Activation::relu:
      return use.template operator()<Activation::relu>();
    case Activation::gelu:
      return use.template operator()<Activation::gelu>();
    case Activation::gelu_tanh:
      return use.template operator()<Activation::gelu_tanh>();
    case Activation::silu:
      return use.template operator()<Activation::silu>();
    case Activation::sigmoid:
      return use.template operator()<Activation::sigmoid>();
  }
}

}  // namespace
}  // namespace decoding::cpu
