// Tools of all attention kernels.
#pragma once

#include <cstdint>

#include "kernels/attention/bias.h"
#include "kernels/attention/head_dim.h"
#include "kernels/cuda/exponential.cuh"

namespace decoding::cuda {

// A score after its bias; distance: from the key to the query.
__device__ __forceinline__ float apply_bias(const AttentionBias& bias, int head, float score,
                                            int distance) {
  if (bias.cap > 0) score = bias.cap * tanhf(score / bias.cap);
  // Rounded once, wherever it is inlined: kernels that differ in how keys are found agree.
  if (bias.slopes != nullptr) score = fmaf(-bias.slopes[head], static_cast<float>(distance), score);
  if (bias.table != nullptr) {
    const int column = min(max(distance, -bias.reach), bias.reach) + bias.reach;
    score += bias.table[head * (2 * bias.reach + 1) + column];
  }
  return score;
}

// Query heads that share a key head.
__device__ __forceinline__ int heads_of_a_key(int heads, int kv_heads) {
  return heads == kv_heads ? 1 : heads / kv_heads;  // divisions take long
}

}  // namespace decoding::cuda
