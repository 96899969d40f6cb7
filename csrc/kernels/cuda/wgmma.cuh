// Hopper's matrix instruction for 2-byte types: four warps multiply, from shared memory, 64 rows of
// one factor by some of the other; both lie in lines of 64 inputs, 128 bytes, whose 16-byte chunks
// are permuted (chunk ^ row % 8), from addresses that are multiples of 1024 on.
//
// Of the result, lane (g, t) of warp w has from rows 16 w + g and 16 w + g + 8 the columns 8 j + 2
// t and 8 j + 2 t + 1: sums[j] is the four of them.
//
// Only code for sm_90a may launch what uses it.
#pragma once

#include "core/types.h"
#include "kernels/cuda/vector.cuh"

namespace decoding::cuda {

// The instruction's descriptor of a tile: its address, in 16 bytes, that eight rows take 1024
// bytes, and the permutation. Two more is 16 inputs further.
__device__ __forceinline__ uint64_t wgmma_tile(uint32_t shared_address) {
  return (shared_address & 0x3FFFF) >> 4 | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

// Makes this thread's copies visible to the instruction.
__device__ __forceinline__ void wgmma_see_copies() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void wgmma_begin() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wgmma_close() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Until at most `open` of the closed groups are still under way. The compiler must not have read
// the sums before.
template <int open, int n>
__device__ __forceinline__ void wgmma_wait(float (&sums)[n][4]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(open) : "memory");
#pragma unroll
  for (int j = 0; j < n; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[j][i])::"memory");
  }
#endif
}

// sums += w x, 16 inputs of 32 rows of x.
template <typename T>
__device__ __forceinline__ void wgmma(float (&d)[4][4], uint64_t w, uint64_t x);
template <>
__device__ __forceinline__ void wgmma<half>(float (&d)[4][4], uint64_t w, uint64_t x) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
      "}, %16, %17, 1, 1, 1, 0, 0;"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
      : "l"(w), "l"(x));
#endif
}
template <>
__device__ __forceinline__ void wgmma<bfloat16>(float (&d)[4][4], uint64_t w, uint64_t x) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
      "}, %16, %17, 1, 1, 1, 0, 0;"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
      : "l"(w), "l"(x));
#endif
}
// sums += w x, 16 inputs of 64 rows of x.
template <typename T>
__device__ __forceinline__ void wgmma(float (&d)[8][4], uint64_t w, uint64_t x);
template <>
__device__ __forceinline__ void wgmma<half>(float (&d)[8][4], uint64_t w, uint64_t x) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, 1, 1, 1, 0, 0;"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
        "+f"(d[7][2]), "+f"(d[7][3])
      : "l"(w), "l"(x));
#endif
}
template <>
__device__ __forceinline__ void wgmma<bfloat16>(float (&d)[8][4], uint64_t w, uint64_t x) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, 1, 1, 1, 0, 0;"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
        "+f"(d[7][2]), "+f"(d[7][3])
      : "l"(w), "l"(x));
#endif
}
// 128 of them in two.
template <typename T>
__device__ __forceinline__ void wgmma(float (&d)[16][4], uint64_t w, uint64_t x) {
  wgmma<T>(reinterpret_cast<float (&)[8][4]>(d[0]), w, x);
  wgmma<T>(reinterpret_cast<float (&)[8][4]>(d[8]), w, x + (64 * 128 >> 4));
}

}  // namespace decoding::cuda
