// Reductions over the threads of one block, and the detection of the last of several blocks.
//
// Sums have one order, fixed by the number of threads: the same numbers give the same bits.
//
// A selection runs through much code once a step, and most of its time would go by while
// instructions come from memory. So what is used more than once is not inlined, and loops stay
// loops.
#pragma once

#include <cstdint>

#include "kernels/cuda/vector.cuh"

namespace decoding::cuda::selection {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__device__ __forceinline__ int lane_id() { return threadIdx.x % 32; }
__device__ __forceinline__ int warp_id() { return threadIdx.x / 32; }

// Grows with x; below every order_of(-inf) lies 0.
__device__ __forceinline__ uint32_t order_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}

__device__ __forceinline__ float value_at(uint32_t order) {
  return __uint_as_float(order & 0x80000000u ? order ^ 0x80000000u : ~order);
}

// Gives every thread what all warps have brought, once each has put its own part down.
template <typename T, typename Combine>
__device__ __forceinline__ T combine_warps(T part, T (&parts)[kWarps], Combine&& combine) {
  __syncthreads();  // what the last call left has been read
  if (lane_id() == 0) parts[warp_id()] = part;
  __syncthreads();
  return combine(parts[lane_id() % kWarps]);
}

static __device__ __noinline__ uint32_t block_max(uint32_t x) {
  __shared__ uint32_t parts[kWarps];
  const auto combine = [](uint32_t y) { return __reduce_max_sync(kAllLanes, y); };
  return combine_warps(combine(x), parts, combine);
}

static __device__ __noinline__ unsigned long long block_sum(unsigned long long x) {
  __shared__ unsigned long long parts[kWarps];
  const auto over_lanes = [](unsigned long long y, int lanes) {
    for (int other = lanes / 2; other > 0; other /= 2) y += __shfl_xor_sync(kAllLanes, y, other);
    return y;
  };
  return combine_warps(over_lanes(x, 32), parts,
                       [&](unsigned long long y) { return over_lanes(y, kWarps); });
}

// The sum over the threads before this one; `total` is that over all.
static __device__ __noinline__ double block_prefix(double x, double& total) {
  __shared__ double parts[kWarps];
  double through = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const double before = __shfl_up_sync(kAllLanes, through, step);
    if (lane_id() >= step) through += before;
  }
  __syncthreads();
  if (lane_id() == 31) parts[warp_id()] = through;
  __syncthreads();
  double before = 0.0;
  total = 0.0;
#pragma unroll 1
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp_id()) before = total;
    total += parts[w];
  }
  const double previous = __shfl_up_sync(kAllLanes, through, 1);
  return lane_id() == 0 ? before : before + previous;
}

// How many threads before this one say yes; `total` counts all that do.
__device__ __forceinline__ int block_rank(bool yes, int& total) {
  __shared__ int parts[kWarps];
  const unsigned votes = __ballot_sync(kAllLanes, yes);
  __syncthreads();
  if (lane_id() == 0) parts[warp_id()] = __popc(votes);
  __syncthreads();
  int before = 0;
  total = 0;
#pragma unroll 1
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp_id()) before += parts[w];
    total += parts[w];
  }
  return before + __popc(votes & ((1u << lane_id()) - 1));
}

// Blocks arrive at a counter, each by one thread. The last of `count` gets how many of them were
// `marked`, sees what the others wrote and leaves the counter 0; the others get -1.
__device__ __forceinline__ int arrive_at_counter(int32_t* counter, int count, bool marked) {
  constexpr int kMark = 1 << 16;
  const int mine = marked ? kMark + 1 : 1;
  int all = mine;
  if (count > 1) {
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;"
                 : "=r"(all)
                 : "l"(counter), "r"(mine)
                 : "memory");
    all += mine;
    if (all % kMark == count) *counter = 0;
  }
  return all % kMark == count ? all / kMark : -1;
}

// The same for all threads of a block.
static __device__ __noinline__ bool last_to_arrive(int32_t* counter, int count) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) last = arrive_at_counter(counter, count, false) >= 0;
  __syncthreads();
  return last;
}

}  // namespace decoding::cuda::selection
