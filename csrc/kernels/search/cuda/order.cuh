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

// What stands in for the i-th candidate where there is none: it comes behind all others.
__device__ __forceinline__ Key none(int i) { return static_cast<Key>(i); }
__device__ __forceinline__ bool is_none(Key key) { return key >> 32 == 0; }

// -1 where there is none.
__device__ __forceinline__ int best_id(Key key) { return is_none(key) ? -1 : id_of(key); }

// Shared memory for candidates. capacity: a power of two. count: 0 whenever nobody collects.
struct Queue {
  Key* keys;
  int* count;
  int capacity;
};

// Best first; all keys differ. Many go through Batcher's bitonic network.
static __device__ __noinline__ void sort_many(Queue queue, int count) {
  Key* keys = queue.keys;
  const int i = threadIdx.x;
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

// How many keys are greater than `mine`; `parts` neighbouring threads, which have the same, share
// the comparisons.
template <int parts>
__device__ __forceinline__ int rank_of(Key mine, const Key* keys, int count) {
  int rank = 0;
#pragma unroll 4
  for (int j = threadIdx.x % parts; j < count; j += parts) rank += keys[j] > mine;
#pragma unroll
  for (int other = 1; other < parts; other *= 2) {
    rank += __shfl_xor_sync(kAllLanes, rank, other);
  }
  return rank;
}

// Few are ranked by comparing each with all.
template <int parts>
__device__ __forceinline__ void sort_few(Queue queue, int count) {
  const int i = threadIdx.x / parts;
  const Key mine = i < count ? queue.keys[i] : 0;
  const int rank = rank_of<parts>(mine, queue.keys, count);
  __syncthreads();
  if (i < count && threadIdx.x % parts == 0) queue.keys[rank] = mine;
  __syncthreads();
}

__device__ __forceinline__ void sort(Queue queue, int count) {
  if (count <= kThreads / 8) {
    sort_few<8>(queue, count);
  } else if (count <= kThreads) {
    sort_few<1>(queue, count);
  } else {
    sort_many(queue, count);
  }
}

}  // namespace decoding::cuda::selection
