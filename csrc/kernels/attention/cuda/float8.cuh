// Keys and values in e4m3 with a scale for each token and head, as kernels/attention/pages.h has
// them: how they are made, and how they become numbers of T again.
#pragma once

#include <cuda_fp8.h>

#include <algorithm>
#include <cstdint>

#include "kernels/attention/cuda/decode/decode.cuh"
#include "kernels/attention/pages.h"
#include "kernels/cuda/tensor_core.cuh"

namespace decoding {

// Beside its type, where templates find it.
__device__ __forceinline__ float to_float(Float8 x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3)));
}

namespace cuda {

// Whether the target converts e4m3 in one instruction. Kernels are empty where it does not, and
// sessions refuse the type there.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
template <typename C>
constexpr bool kConverts = !kIsFloat8<C>;
#else
template <typename C>
constexpr bool kConverts = true;
#endif

// Of T: the exponent field of a float32 that is the least normal number, and the largest number
// that has as few bits as e4m3.
template <typename T>
struct Float8Range;
template <>
struct Float8Range<half> {
  static constexpr int least = 127 - 14;
  static constexpr float most = 0x1.ep15f;
};
template <>
struct Float8Range<bfloat16> {
  static constexpr int least = 1;
  static constexpr float most = 0x1.ep127f;
};

// largest: the bits of the largest |x| of a vector, as a float32; those of NaN are above
// infinity's, and these above all numbers'. 448 = 1.75 * 2^8: a larger fraction carries into the
// exponent.
template <typename T>
__device__ __forceinline__ float float8_scale(uint32_t largest) {
  if (largest >= 0x7F800000u) return __uint_as_float(0x7FFFFFFFu);
  const int exponent = static_cast<int>((largest + 0x1FFFFFu) >> 23) - 8;
  return __uint_as_float(static_cast<uint32_t>(max(exponent, Float8Range<T>::least)) << 23);
}

// Two neighbouring numbers of T, times a power of two; the upper one comes second in memory.
__device__ __forceinline__ uint32_t to_float8(float2 pair) {
  return __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
}
template <typename T>
__device__ __forceinline__ uint32_t from_float8(uint16_t pair, float scale);
template <>
__device__ __forceinline__ uint32_t from_float8<half>(uint16_t pair, float scale) {
  const __half2 numbers(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3));
  const __half2 scaled = __hmul2(numbers, __float2half2_rn(scale));
  return reinterpret_cast<const uint32_t&>(scaled);
}
template <>
__device__ __forceinline__ uint32_t from_float8<bfloat16>(uint16_t pair, float scale) {
  const float2 numbers = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
  return pack<bfloat16>({numbers.x * scale, numbers.y * scale});
}

// Eight of them.
template <typename T>
__device__ __forceinline__ uint4 from_float8(uint2 numbers, float scale) {
  const auto two = [&](uint32_t pair) {
    return from_float8<T>(static_cast<uint16_t>(pair), scale);
  };
  return {two(numbers.x), two(numbers.x >> 16), two(numbers.y), two(numbers.y >> 16)};
}

// 4 or 8 bytes to shared memory; zeros where not `valid`.
template <int bytes>
__device__ __forceinline__ void copy_few(void* to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "n"(bytes), "r"(valid ? bytes : 0)
               : "memory");
}

// The scale of a token's key or value in a head, for keys that have scales. rows: of these keys.
template <typename C, typename Rows>
__device__ __forceinline__ float scale_of(const float* scales, const Rows& rows, int token) {
  if constexpr (kIsFloat8<C>) return scales[rows.in_head(token)];
  return 1.0f;
}

// Writes a row, by the lanes that hold it.
template <typename T, typename S>
__device__ __forceinline__ void store_float8(const RowFragment<T, S>& row, Float8* to, float* scale,
                                             int dim) {
  static_assert(S::width == 8);
  const unsigned first = threadIdx.x % kWarp / S::lanes * S::lanes;
  const unsigned lanes = kAllLanes >> (kWarp - S::lanes) << first;  // other rows may have none
  uint32_t largest = 0;
#pragma unroll
  for (int e = 0; e < S::elements; ++e) {
    largest = max(largest, __float_as_uint(row[e]) & 0x7FFFFFFFu);
  }
#pragma unroll
  for (int other = S::lanes / 2; other > 0; other /= 2) {
    largest = max(largest, __shfl_xor_sync(lanes, largest, other));
  }
  const float found = float8_scale<T>(largest);
  const float inverse = __uint_as_float((254u << 23) - __float_as_uint(found));
  constexpr float kMost = Float8Range<T>::most;
  const auto two = [&](int e) {
    const auto scaled = [&](float x) { return fminf(fmaxf(x, -kMost), kMost) * inverse; };
    return to_float8({scaled(row[e]), scaled(row[e + 1])});
  };
#pragma unroll
  for (int v = 0; v < S::vectors; ++v) {
    const int e = v * S::width;
    const uint2 packed = {two(e) | two(e + 2) << 16, two(e + 4) | two(e + 6) << 16};
    if (S::at(v) < dim) *reinterpret_cast<uint2*>(to + S::at(v)) = packed;
  }
  if (S::at(0) == 0) *scale = found;
}

}  // namespace cuda
}  // namespace decoding
