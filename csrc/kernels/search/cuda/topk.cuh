// The k best of a row, best first. The idea is in topk.h: what reaches a bound that the groups'
// maxima prove is queued and sorted. Where there are many groups, each number that the bound is
// chosen from is the maximum of several groups: k of those still prove k elements. Where there are
// k groups or fewer, it is the maximum of a few elements.
#pragma once

#include "kernels/search/cuda/call.cuh"
#include "kernels/search/cuda/prefix.cuh"

namespace decoding::cuda::selection {

constexpr Key kBestKey = ~Key{0};

static __device__ __noinline__ float largest(const float* maxima, int count) {
  float x = -INFINITY;
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) x = fmaxf(x, maxima[i]);
  return value_at(block_max(order_of(x)));
}

// The k-th largest of many maxima, where k is small, by every warp for itself: each lane takes the
// maximum of some.
__device__ __forceinline__ float kth_of_lanes(const float* maxima, int count, int k) {
  constexpr int kAtOnce = 4;
  float x = -INFINITY;
#pragma unroll 1
  for (int base = lane_id(); base < count; base += 32 * kAtOnce) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (base + 32 * i < count) x = fmaxf(x, maxima[base + 32 * i]);
    }
  }
  __syncwarp();
  const uint32_t mine = order_of(x);
  if (k == 1) return value_at(__reduce_max_sync(kAllLanes, mine));
  int above = 0;
#pragma unroll
  for (int other = 1; other < 32; ++other) {
    above += __shfl_xor_sync(kAllLanes, mine, other) > mine;
  }
  // The smallest that fewer than k exceed.
  return value_at(__reduce_min_sync(kAllLanes, above < k ? mine : 0xFFFFFFFFu));
}

// The same by the block, of kThreads / 2 or 2 * k maxima of value(0) to value(values - 1). Uses the
// queue's memory: k is at most half of its capacity.
template <typename Value>
__device__ __noinline__ float kth_of_threads(int values, int k, Queue queue, Value value) {
  auto* orders = reinterpret_cast<uint32_t*>(queue.keys);
  const int count = min(values, max(kThreads / 2, 2 * k)), padded = (count + 3) / 4 * 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < padded; i += kThreads) {
    float x = -INFINITY;
#pragma unroll 1
    for (int at = i; at < values && i < count; at += count) x = fmaxf(x, value(at));
    orders[i] = i < count ? order_of(x) : 0;
  }
  __syncthreads();
  // Two threads share a number.
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
  return value_at(~block_max(~kth));
}

// A finite bound that the k best elements of a share reach.
template <typename T>
__device__ __forceinline__ float bound_of_best(const Row<T>& row, int k, Queue queue) {
  constexpr int kFew = 16;
  const float* maxima = row.group_max + row.begin;
  const int groups = row.end - row.begin;
  float bound;
  if (k >= groups) {
    const int first = row.begin * kGroup, columns = min(row.end * kGroup, row.vocab) - first;
    bound = kth_of_threads(max(0, columns), k, queue, [=](int i) {
      const bool left = maxima[i / kGroup] > -INFINITY;  // by forced tokens, as far as groups go
      return left ? to_float(row.logits[first + i]) : -INFINITY;
    });
  } else if (k <= kFew) {
    bound = kth_of_lanes(maxima, groups, k);
  } else {
    bound = kth_of_threads(groups, k, queue, [=](int i) { return maxima[i]; });
  }
  return fmaxf(-FLT_MAX, bound);
}

// Puts none in the place of what is banned, and -inf in the logits.
template <typename T>
__device__ __forceinline__ void leave_out(const Row<T>& row, const Bans& bans, Queue queue,
                                          int count) {
  const int ban = threadIdx.x < bans.count ? bans.ids[threadIdx.x] : -kGroup;
  if (row.has(ban / kGroup)) row.logits[ban] = from_float<T>(-INFINITY);
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) {
    if (bans.has(id_of(queue.keys[i]))) queue.keys[i] = none(i);
  }
  __syncthreads();
}

// Queues what may be among the k best of a share, in no order; returns how much that is, none in
// the place of bans included.
template <typename T>
__device__ __forceinline__ int queue_best(const Row<T>& row, int k, const Bans& bans, Queue queue) {
  const int wanted = k + bans.count;
  const float bound = bound_of_best(row, wanted, queue);
  Call::wait_for_copies();  // of the bans, before the block meets
  int count = collect(row, first_key(bound), kBestKey, queue);
  if (count > queue.capacity) {  // there are more equals than the queue holds
    const Counted best = {wanted, largest(row.group_max + row.begin, row.end - row.begin)};
    count = collect(row, end_of_prefix(row, best, bound, queue), kBestKey, queue);
  }
  if (bans.count > 0) leave_out(row, bans, queue, count);
  return count;
}

}  // namespace decoding::cuda::selection
