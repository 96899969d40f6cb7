// What the attentions share: weights are powers of two, scores come scaled by log2(e).
#pragma once

namespace decoding::cuda {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kNoScore = -__builtin_inff();  // the maximum of nothing

// To 2 ulp, like exp2f, but without its care for denormal results.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What scores are taken relative to: where all are -inf, they weigh nothing, and no NaN arises.
__device__ __forceinline__ float reference(float maximum) {
  return maximum == kNoScore ? 0.0f : maximum;
}

}  // namespace decoding::cuda
