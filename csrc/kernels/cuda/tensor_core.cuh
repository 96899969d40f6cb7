// The instructions of the tensor cores and of asynchronous copies, for 2-byte types.
//
// mma.m16n8k16, with g = lane / 4 and t = lane % 4, every register a pair of neighbouring k:
//   a: (row g, k 2t) (row g + 8, k 2t) (row g, k 2t + 8) (row g + 8, k 2t + 8)
//   b: (column g, k 2t) (column g, k 2t + 8)
//   c: (row g, column 2t) (row g, column 2t + 1) (row g + 8, column 2t) (row g + 8, column 2t + 1)
#pragma once

#include "core/types.h"
#include "kernels/cuda/vector.cuh"

namespace decoding::cuda {

// c += a b
template <typename T>
__device__ __forceinline__ void multiply_add(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply_add<half>(float (&c)[4], uint32_t a0, uint32_t a1,
                                                   uint32_t a2, uint32_t a3, uint32_t b0,
                                                   uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply_add<bfloat16>(float (&c)[4], uint32_t a0, uint32_t a1,
                                                       uint32_t a2, uint32_t a3, uint32_t b0,
                                                       uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four 8x8 matrices; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address)
               : "memory");
}

// Like load_matrices, each transposed.
__device__ __forceinline__ void load_transposed(uint32_t (&to)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address)
               : "memory");
}

// Two neighbouring elements as floats, and back.
template <typename T>
__device__ __forceinline__ float2 unpack(uint32_t pair);
template <>
__device__ __forceinline__ float2 unpack<half>(uint32_t pair) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}
template <>
__device__ __forceinline__ float2 unpack<bfloat16>(uint32_t pair) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
}
template <typename T>
__device__ __forceinline__ uint32_t pack(float2 pair);
template <>
__device__ __forceinline__ uint32_t pack<half>(float2 pair) {
  const __half2 packed = __float22half2_rn(pair);
  return reinterpret_cast<const uint32_t&>(packed);
}
template <>
__device__ __forceinline__ uint32_t pack<bfloat16>(float2 pair) {
  const __nv_bfloat162 packed = __float22bfloat162_rn(pair);
  return reinterpret_cast<const uint32_t&>(packed);
}

// The policy of a line of the L2 cache after it was read: where a matrix would fill the cache, such
// as a vocabulary's, its lines go first, so that smaller ones stay from step to step.
enum class Keep { normal, evict_first };

// 16 bytes of a weight, zeros where not `valid`. Volatile, so that the compiler leaves the request
// in its place: before the wait for the previous kernel. Each weight is read once: it need not
// stay in L1. The L2 cache fetches the 128 bytes that they lie in, for what will be requested next.
template <Keep keep = Keep::normal>
__device__ __forceinline__ uint4 request_weight(const void* from, bool valid) {
  uint4 to;
  if constexpr (keep == Keep::normal) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
        " mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
        " @p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
        : "l"(from), "r"(static_cast<int>(valid)));
  } else {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
        " mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
        " @p ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4], "
        "%6;\n}"
        : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
        : "l"(from), "r"(static_cast<int>(valid)), "l"(policy));
  }
  return to;
}

// 16 bytes to shared memory, asynchronously; zeros where not `valid`. whole_line: the L2 cache
// fetches the 128 bytes that they lie in, for what will be copied next.
template <bool whole_line = false>
__device__ __forceinline__ void copy_async(uint32_t shared_address, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  if constexpr (whole_line) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address),
                 "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(from),
                 "r"(bytes)
                 : "memory");
  }
}
__device__ __forceinline__ void close_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Has the cache look for what will be read after the wait for the kernel before. It reads nothing,
// so it may come before the wait; in its place the compiler must have computed the address,
// which it would otherwise put off until after, where every instruction counts.
__device__ __forceinline__ void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// gamma to shared memory, and beta `size` floats after it; zeros after the inputs and where there
// is no beta.
template <int kThreads>
__device__ __forceinline__ void request_scales(float* to, const Norm& norm, int size, int inputs) {
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const float* const beta = norm.beta != nullptr ? norm.beta : norm.gamma;
  for (int k = 4 * threadIdx.x; k < size; k += 4 * kThreads) {
    const int from = k < inputs ? k : 0;
    copy_async(at + 4 * k, norm.gamma + from, k < inputs);
    copy_async(at + 4 * (size + k), beta + from, k < inputs && norm.beta != nullptr);
  }
  close_copies();
}
// Until at most `open` of the closed groups of copies are still under way.
template <int open>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(open) : "memory");
}

}  // namespace decoding::cuda
