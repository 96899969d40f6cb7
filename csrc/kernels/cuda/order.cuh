// Candidates as integers: the greater key is the better candidate, by value and then, among equals,
// by the lower id. -0 counts as 0.
#pragma once

#include <cstdint>

#include "kernels/cuda/block.cuh"

namespace decoding::cuda::selection {

using Key = unsigned long long;

__device__ __forceinline__ Key key_of(float value, int id) {
  return Key{order_of(value)} << 32 | ~static_cast<uint32_t>(id);
}

// The worst and the best key of a value.
__device__ __forceinline__ Key first_key(float value) { return Key{order_of(value)} << 32; }
__device__ __forceinline__ Key last_key(uint32_t order) { return Key{order} << 32 | 0xFFFFFFFFu; }

__device__ __forceinline__ float value_of(Key key) {
  return value_at(static_cast<uint32_t>(key >> 32));
}
__device__ __forceinline__ int id_of(Key key) {
  return static_cast<int>(~static_cast<uint32_t>(key));
}

// Shared memory for candidates. capacity: a power of two.
struct Queue {
  Key* keys;
  int capacity;
};

// Best first; all keys differ. Few are ranked by comparing each with all, many go through Batcher's
// bitonic network.
static __device__ __noinline__ void sort(Queue queue, int count) {
  Key* keys = queue.keys;
  const int i = threadIdx.x;
  if (count <= kThreads) {
    const Key mine = i < count ? keys[i] : 0;
    int rank = 0;
    if (i < count) {
#pragma unroll 2
      for (int j = 0; j < count; ++j) rank += keys[j] > mine;
    }
    __syncthreads();
    if (i < count) keys[rank] = mine;
    __syncthreads();
    return;
  }
  int padded = 2 * kThreads;
  while (padded < count) padded *= 2;
#pragma unroll 1
  for (int at = count + i; at < padded; at += kThreads) keys[at] = 0;
  __syncthreads();
  for (int size = 2; size <= padded; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
#pragma unroll 1
      for (int pair = i; pair < padded / 2; pair += kThreads) {
        const int left = 2 * pair - (pair & (stride - 1));
        const Key a = keys[left], b = keys[left + stride];
        if ((a < b) == ((left & size) == 0)) {
          keys[left] = b;
          keys[left + stride] = a;
        }
      }
      __syncthreads();
    }
  }
}

}  // namespace decoding::cuda::selection
