// Quantized weights on their way to the tensor cores, as linear.h lays them out: the four bytes of
// a lane become the two registers that mma.m16n8k16 wants of 16 inputs, without a shuffle.
#pragma once

#include <cuda_fp8.h>

#include "core/types.h"
#include "kernels/cuda/tensor_core.cuh"

namespace decoding::cuda {

__device__ __forceinline__ uint32_t load_shared(uint32_t shared_address) {
  uint32_t bits;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(bits) : "r"(shared_address) : "memory");
  return bits;
}

// Four numbers of W as pairs of T, exactly.
template <typename T, typename W>
__device__ __forceinline__ uint2 widen(uint32_t four);

// In half the bits 0x6400 | u are 1024 + u, and u is the number + 128.
template <>
__device__ __forceinline__ uint2 widen<half, int8_t>(uint32_t four) {
  const uint32_t biased = four ^ 0x80808080u, shift = 0x64806480u;  // 1152, twice
  const auto number = [&](uint32_t pair) {
    const __half2 value =
        __hsub2(reinterpret_cast<const __half2&>(pair), reinterpret_cast<const __half2&>(shift));
    return reinterpret_cast<const uint32_t&>(value);
  };
  return {number(__byte_perm(biased, 0x64646464u, 0x4140)),
          number(__byte_perm(biased, 0x64646464u, 0x4342))};
}

// In bfloat16, whose steps from 128 on are 1, the bits 0x4300 | u are 128 + u for u < 128, and
// 0x4380 are 256: the number is 128 plus its lower seven bits, minus 128, or 256 where it is
// negative.
template <>
__device__ __forceinline__ uint2 widen<bfloat16, int8_t>(uint32_t four) {
  const auto number = [](uint32_t pair) {
    const uint32_t low = pair & 0xFF7FFF7Fu, sign = pair & 0xFF80FF80u;
    const __nv_bfloat162 value = __hsub2(reinterpret_cast<const __nv_bfloat162&>(low),
                                         reinterpret_cast<const __nv_bfloat162&>(sign));
    return reinterpret_cast<const uint32_t&>(value);
  };
  return {number(__byte_perm(four, 0x43434343u, 0x4140)),
          number(__byte_perm(four, 0x43434343u, 0x4342))};
}

// An e4m3 has its sign, four bits of exponent and three of mantissa. As the sign, the lowest bits
// of the exponent and the highest of the mantissa of a half or a bfloat16 it is too small by the
// same factor, a power of two, for all numbers: those without a leading one have none there either.
// Weights hold no NaN. shift: from the upper byte of 16 bits to there.
template <int shift, typename Pair>
__device__ __forceinline__ uint2 widen_e4m3(uint32_t four, uint32_t factors) {
  const auto number = [&](uint32_t pair) {
    const uint32_t bits = (pair & 0x80008000u) | (pair & 0x7F007F00u) >> shift;
    const Pair value =
        __hmul2(reinterpret_cast<const Pair&>(bits), reinterpret_cast<const Pair&>(factors));
    return reinterpret_cast<const uint32_t&>(value);
  };
  return {number(__byte_perm(four, 0, 0x1404)), number(__byte_perm(four, 0, 0x3424))};
}
template <>
__device__ __forceinline__ uint2 widen<half, Float8>(uint32_t four) {
#if __CUDA_ARCH__ >= 890  // which has an instruction for it
  const auto number = [](uint32_t pair) {
    const __half2_raw value = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3);
    return reinterpret_cast<const uint32_t&>(value);
  };
  return {number(four & 0xFFFFu), number(four >> 16)};
#else
  return widen_e4m3<1, __half2>(four, 0x5C005C00u);  // 2^8, twice
#endif
}
template <>
__device__ __forceinline__ uint2 widen<bfloat16, Float8>(uint32_t four) {
  return widen_e4m3<4, __nv_bfloat162>(four, 0x7B807B80u);  // 2^120, twice
}

}  // namespace decoding::cuda
