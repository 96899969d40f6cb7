// e^x, and what the exponentials of a sum are taken relative to.
#pragma once

namespace decoding::cuda {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kNoScore = -__builtin_inff();  // the maximum of nothing

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// e^x, for T = float to the last bit or two: scaling by log2(e) costs a large x some.
template <typename T>
__device__ __forceinline__ float exponential(float x) {
  if constexpr (sizeof(T) == 4) return expf(x);
  return power_of_two(x * kLog2e);
}

// The number that scores are taken relative to: where all are -inf, they weigh nothing, and no NaN
// arises.
__device__ __forceinline__ float reference(float maximum) {
  return maximum == kNoScore ? 0.0f : maximum;
}

}  // namespace decoding::cuda
