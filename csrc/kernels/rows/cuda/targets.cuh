// A row's targets, for the loss and its gradient.
#pragma once

#include <cstdint>

#include "kernels/rows/cross_entropy.h"

namespace decoding::cuda {

__device__ __forceinline__ bool is_class(const Targets<float>& targets, int64_t label) {
  return label >= 0 && label < targets.classes && label != targets.ignored;
}

// sum_c w[c] (x[c] - near), for neighbouring columns from `c` on.
template <int count>
__device__ __forceinline__ float weighted_sum(const Targets<float>& targets, int c,
                                              const float (&x)[count], float near) {
  float sum = 0.0f;
  if (targets.weight == nullptr) {
#pragma unroll
    for (int i = 0; i < count; ++i) sum += x[i] - near;
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i) sum += (x[i] - near) * targets.weight[c + i];
  }
  return sum;
}

}  // namespace decoding::cuda
