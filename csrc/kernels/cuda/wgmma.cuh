// Hopper's matrix instruction for 2-byte types: four warps multiply 64 rows of one factor by some
// of the other. In shared memory a factor lies in lines of 64 inputs, 128 bytes, whose 16-byte
// chunks are permuted (chunk ^ row % 8), from addresses that are multiples of 1024 on. The first
// factor may be in registers instead: of 16 inputs lane (g, t) of warp w has those of rows 16 w + g
// and 16 w + g + 8 that mma.m16n8k16 wants as its a (tensor_core.cuh).
//
// Of the result, lane (g, t) of warp w has from rows 16 w + g and 16 w + g + 8 the columns 8 j + 2
// t and 8 j + 2 t + 1: sums[j] is the four of them.
//
// Only code for sm_90a may launch what uses it.
#pragma once

#include <type_traits>

#include "core/types.h"
#include "kernels/cuda/vector.cuh"

namespace decoding::cuda {

// The instruction's descriptor of a tile: its address, in 16 bytes, from where to where the next 64
// rows are if the lines are inputs, and the next eight lines, and the permutation. Two more is 16
// inputs further.
template <int eight_lines = 1024>
__device__ __forceinline__ uint64_t wgmma_tile(uint32_t shared_address) {
  return (shared_address & 0x3FFFF) >> 4 | uint64_t{1024 >> 4} << 16 |
         uint64_t{eight_lines >> 4} << 32 | uint64_t{1} << 62;
}

// Makes this thread's copies visible to the instruction.
__device__ __forceinline__ void wgmma_see_copies() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// All threads of a block start with as many registers; groups of four warps that need fewer hand
// some to the others, which say how many each of their threads has then, a multiple of 8.
template <int registers>
__device__ __forceinline__ void raise_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}
template <int registers>
__device__ __forceinline__ void lower_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}

// Keeps what the compiler does with registers of an instruction on this side of it.
template <typename Register, int n>
__device__ __forceinline__ void pin(Register (&registers)[n][4]) {
#pragma unroll
  for (int j = 0; j < n; ++j) {
#pragma unroll
    for (Register& each : registers[j]) {
      if constexpr (std::is_same_v<Register, float>) {
        asm volatile("" : "+f"(each)::"memory");
      } else {
        asm volatile("" : "+r"(each)::"memory");
      }
    }
  }
}

// registers: those of the instructions to come that were written since the last ones.
template <typename... Registers>
__device__ __forceinline__ void wgmma_begin(Registers&... registers) {
  (pin(registers), ...);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wgmma_close() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Until at most `open` of the closed groups are still under way.
template <int open>
__device__ __forceinline__ void wgmma_wait() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(open) : "memory");
#endif
}
// The same for sums that are complete then: the compiler must not have read them before.
template <int open, int n>
__device__ __forceinline__ void wgmma_wait(float (&sums)[n][4]) {
  wgmma_wait<open>();
  pin(sums);
}

// sums += w x, 16 inputs of 32, 64, 128 or 256 rows of x. w: a tile, or this thread's part of the
// factor.
template <typename T>
__device__ __forceinline__ void wgmma(float (&d)[4][4], uint64_t w, uint64_t x);
template <typename T>
__device__ __forceinline__ void wgmma(float (&d)[4][4], const uint32_t (&w)[4], uint64_t x);
template <typename T>
__device__ __forceinline__ void wgmma(float (&d)[8][4], uint64_t w, uint64_t x);
template <typename T>
__device__ __forceinline__ void wgmma(float (&d)[8][4], const uint32_t (&w)[4], uint64_t x);
template <typename T>
__device__ __forceinline__ void wgmma(float (&d)[16][4], uint64_t w, uint64_t x);
template <typename T>
__device__ __forceinline__ void wgmma(float (&d)[16][4], const uint32_t (&w)[4], uint64_t x);
template <typename T>
__device__ __forceinline__ void wgmma(float (&d)[32][4], uint64_t w, uint64_t x);
template <typename T>
__device__ __forceinline__ void wgmma(float (&d)[32][4], const uint32_t (&w)[4], uint64_t x);
// The same, where the lines of x are inputs, of 64 rows each.
template <typename T>
__device__ __forceinline__ void wgmma_transposed(float (&d)[8][4], const uint32_t (&w)[4],
                                                 uint64_t x);
template <typename T>
__device__ __forceinline__ void wgmma_transposed(float (&d)[16][4], const uint32_t (&w)[4],
                                                 uint64_t x);

// sums += x w of int8: lines have 128 inputs, of which this takes 32, two more in a descriptor.
__device__ __forceinline__ void wgmma_int8(int (&d)[32][4], uint64_t x, uint64_t w);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WGMMA(shape, type, ...) \
  asm volatile("wgmma.mma_async.sync.aligned.m64" shape "k16.f32." type "." type " " __VA_ARGS__)
#else
#define WGMMA(...)
#endif
#define NAMES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_64 \
  NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_128                                                                           \
  NAMES_64                                                                                  \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
  "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_256                                                                           \
  NAMES_128                                                                                 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
  "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, "   \
  "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "      \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "    \
  "%126, %127"
#define SUMS_8(d, j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define SUMS_32(d, j) SUMS_8(d, j), SUMS_8(d, j + 1), SUMS_8(d, j + 2), SUMS_8(d, j + 3)
#define SUMS_64(d, j) SUMS_32(d, j), SUMS_32(d, j + 4)
#define SUMS_128(d, j) SUMS_64(d, j), SUMS_64(d, j + 8)
#define SUMS_256(d, j) SUMS_128(d, j), SUMS_128(d, j + 16)
#define PART(w) "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])

// tiles, part: the names of both tiles, and of a part and a tile.
#define DEFINE_WGMMA(T, type, n, tiles, part)                                                   \
  template <>                                                                                   \
  __device__ __forceinline__ void wgmma<T>(float (&d)[n / 8][4], uint64_t w, uint64_t x) {      \
    WGMMA("n" #n, type, "{" NAMES_##n "}, " tiles ", 1, 1, 1, 0, 0;" : SUMS_##n(d, 0) : "l"(w), \
          "l"(x));                                                                              \
  }                                                                                             \
  template <>                                                                                   \
  __device__ __forceinline__ void wgmma<T>(float (&d)[n / 8][4], const uint32_t (&w)[4],        \
                                           uint64_t x) {                                        \
    WGMMA("n" #n, type, "{" NAMES_##n "}, " part ", 1, 1, 1, 0;" : SUMS_##n(d, 0) : PART(w),    \
          "l"(x));                                                                              \
  }
#define DEFINE_TRANSPOSED(T, type, n, part)                                                  \
  template <>                                                                                \
  __device__ __forceinline__ void wgmma_transposed<T>(float (&d)[n / 8][4],                  \
                                                      const uint32_t (&w)[4], uint64_t x) {  \
    WGMMA("n" #n, type, "{" NAMES_##n "}, " part ", 1, 1, 1, 1;" : SUMS_##n(d, 0) : PART(w), \
          "l"(x));                                                                           \
  }
#define PART_32 "{%16, %17, %18, %19}, %20"
#define PART_64 "{%32, %33, %34, %35}, %36"
#define PART_128 "{%64, %65, %66, %67}, %68"
#define PART_256 "{%128, %129, %130, %131}, %132"
#define DEFINE_FOR_TYPE(T, type)                     \
  DEFINE_WGMMA(T, type, 32, "%16, %17", PART_32)     \
  DEFINE_WGMMA(T, type, 64, "%32, %33", PART_64)     \
  DEFINE_WGMMA(T, type, 128, "%64, %65", PART_128)   \
  DEFINE_WGMMA(T, type, 256, "%128, %129", PART_256) \
  DEFINE_TRANSPOSED(T, type, 64, PART_64)            \
  DEFINE_TRANSPOSED(T, type, 128, PART_128)
DEFINE_FOR_TYPE(half, "f16")
DEFINE_FOR_TYPE(bfloat16, "bf16")
#undef DEFINE_FOR_TYPE
#define INTS_8(d, j) "+r"(d[j][0]), "+r"(d[j][1]), "+r"(d[j][2]), "+r"(d[j][3])
#define INTS_32(d, j) INTS_8(d, j), INTS_8(d, j + 1), INTS_8(d, j + 2), INTS_8(d, j + 3)
#define INTS_128(d, j) INTS_32(d, j), INTS_32(d, j + 4), INTS_32(d, j + 8), INTS_32(d, j + 12)
__device__ __forceinline__ void wgmma_int8(int (&d)[32][4], uint64_t x, uint64_t w) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 {" NAMES_256 "}, %128, %129, 1;"
               : INTS_128(d, 0), INTS_128(d, 16)
               : "l"(x), "l"(w));
#endif
}
#undef INTS_128
#undef INTS_32
#undef INTS_8
#undef PART_256
#undef PART_128
#undef PART_64
#undef PART_32
#undef DEFINE_TRANSPOSED
#undef DEFINE_WGMMA
#undef PART
#undef SUMS_256
#undef SUMS_128
#undef SUMS_64
#undef SUMS_32
#undef SUMS_8
#undef NAMES_256
#undef NAMES_128
#undef NAMES_64
#undef NAMES_32
#undef WGMMA

}  // namespace decoding::cuda
