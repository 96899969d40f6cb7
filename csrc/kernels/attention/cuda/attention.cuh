// What the attentions share.
#pragma once

#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/cuda/exponential.cuh"

namespace decoding::cuda {

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

}  // namespace decoding::cuda
