// What the threads of one block work out together, and how blocks find out who is last.
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

// NaN is passed over. Every thread gets the result.
static __device__ __noinline__ float block_max(float x) {
  __shared__ float parts[kWarps];
  x = warp_max(x);
  __syncthreads();  // what the last call left has been read
  if (lane_id() == 0) parts[warp_id()] = x;
  __syncthreads();
  x = parts[0];
#pragma unroll 1
  for (int w = 1; w < kWarps; ++w) x = fmaxf(x, parts[w]);
  return x;
}

static __device__ __noinline__ float block_sum(float x) {
  __shared__ float parts[kWarps];
  x = warp_sum(x);
  __syncthreads();
  if (lane_id() == 0) parts[warp_id()] = x;
  __syncthreads();
  x = parts[0];
#pragma unroll 1
  for (int w = 1; w < kWarps; ++w) x += parts[w];
  return x;
}

__device__ __forceinline__ uint32_t block_min(uint32_t x) {
  __shared__ uint32_t parts[kWarps];
  x = __reduce_min_sync(kAllLanes, x);
  __syncthreads();
  if (lane_id() == 0) parts[warp_id()] = x;
  __syncthreads();
  x = parts[0];
#pragma unroll 1
  for (int w = 1; w < kWarps; ++w) x = min(x, parts[w]);
  return x;
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

// True in the block that is the last of `count` to arrive: it sees what the others wrote and leaves
// the ticket 0.
static __device__ __noinline__ bool last_to_arrive(int32_t* ticket, int count) {
  __shared__ bool last;
  __syncthreads();
  if (count == 1) return true;
  if (threadIdx.x == 0) {
    int before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(ticket)
                 : "memory");
    last = before == count - 1;
    if (last) *ticket = 0;
  }
  __syncthreads();
  return last;
}

}  // namespace decoding::cuda::selection
