// The k best of a row, best first. The idea is in topk.h: what reaches a bound that the groups'
// maxima prove is queued and sorted. Where there are many groups, each number that the bound is
// chosen from is the maximum of several groups: k of those still prove k elements.
#pragma once

#include "kernels/cuda/prefix.cuh"

namespace decoding::cuda::selection {

constexpr Key kBestKey = ~Key{0};

static __device__ __noinline__ float largest(const float* group_max, int groups) {
  float x = -INFINITY;
#pragma unroll 1
  for (int g = threadIdx.x; g < groups; g += kThreads) x = fmaxf(x, group_max[g]);
  return value_at(block_max(order_of(x)));
}

// A bound that the k best elements reach; -FLT_MAX where the maxima prove none. Uses the queue's
// memory: k is at most half of its capacity.
__device__ __forceinline__ float bound_of_best(const float* group_max, int groups, int k,
                                               Queue queue) {
  if (k >= groups) return -FLT_MAX;
  if (k == 1) return fmaxf(-FLT_MAX, largest(group_max, groups));
  auto* orders = reinterpret_cast<uint32_t*>(queue.keys);
  const int count = min(groups, max(kThreads / 2, 2 * k)), padded = (count + 3) / 4 * 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < padded; i += kThreads) {
    float x = -INFINITY;
#pragma unroll 1
    for (int g = i; g < groups && i < count; g += count) x = fmaxf(x, group_max[g]);
    orders[i] = i < count ? order_of(x) : 0;
  }
  __syncthreads();
  // The k-th largest is the smallest that fewer than k exceed. Two threads share a number.
  uint32_t kth = 0xFFFFFFFFu;
#pragma unroll 1
  for (int base = 0; base < count; base += kThreads / 2) {
    const int i = base + threadIdx.x / 2;
    const uint32_t mine = i < count ? orders[i] : 0;
    int above = 0;
#pragma unroll 4
    for (int j = threadIdx.x % 2 * 4; j < padded; j += 8) {
      const uint4 four = *reinterpret_cast<const uint4*>(orders + j);
      above += (four.x > mine) + (four.y > mine) + (four.z > mine) + (four.w > mine);
    }
    above += __shfl_xor_sync(kAllLanes, above, 1);
    if (above < k && i < count) kth = min(kth, mine);
  }
  return fmaxf(-FLT_MAX, value_at(~block_max(~kth)));
}

// Leaves the k best at the queue's head; returns how many there are, as far as they are finite.
template <typename T>
__device__ int find_best(Row<T> row, int k, Queue queue) {
  const float bound = bound_of_best(row.group_max, row.groups, k, queue);
  int count = collect(row, first_key(bound), kBestKey, queue);
  if (count > queue.capacity) {  // there are more equals than the queue holds
    const Counted best = {k, largest(row.group_max, row.groups)};
    count = collect(row, end_of_prefix(row, best, bound, queue), kBestKey, queue);
  }
  sort(queue, count);
  return min(count, k);
}

}  // namespace decoding::cuda::selection
