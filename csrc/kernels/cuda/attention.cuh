// What the attentions share.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

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

// Like load_matrices, each transposed.
__device__ __forceinline__ void load_transposed(uint32_t (&to)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address)
               : "memory");
}

// What the rules make of a score; `distance`: from the key to the query.
__device__ __forceinline__ float follow(const ScoreRules& rules, int head, float score,
                                        int distance) {
  if (rules.cap > 0) score = rules.cap * tanhf(score / rules.cap);
  if (rules.slopes != nullptr) score -= rules.slopes[head] * distance;
  if (rules.table != nullptr) {
    const int column = min(max(distance, -rules.reach), rules.reach) + rules.reach;
    score += rules.table[head * (2 * rules.reach + 1) + column];
  }
  return score;
}

// Query heads that share a key head.
__device__ __forceinline__ int heads_of_a_key(int heads, int kv_heads) {
  return heads == kv_heads ? 1 : heads / kv_heads;  // divisions take long
}

// What scores are taken relative to: where all are -inf, they weigh nothing, and no NaN arises.
__device__ __forceinline__ float reference(float maximum) {
  return maximum == kNoScore ? 0.0f : maximum;
}

}  // namespace decoding::cuda
