// 16-byte loads and stores of any element type, conversion to float and back, and reductions over a
// warp.
#pragma once

#include <cstdint>

#include "kernels/cuda/types.h"

namespace decoding::cuda {

constexpr unsigned kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ half from_float<half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ bfloat16 from_float<bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// `count` neighbouring elements that are loaded and stored at once; by default 16 bytes of them.
template <typename T, int count = 16 / sizeof(T)>
struct alignas(sizeof(T) * count) Vector {
  T values[count];

  __device__ __forceinline__ static Vector load(const T* from) {
    return *reinterpret_cast<const Vector*>(from);
  }
  __device__ __forceinline__ void store(T* to) const { *reinterpret_cast<Vector*>(to) = *this; }
  __device__ __forceinline__ float operator[](int i) const { return to_float(values[i]); }
};

// Whether rows of `stride` elements from `data` on can be read 16 bytes at a time.
template <typename T>
inline bool aligned16(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * sizeof(T) % 16 == 0;
}

// Over groups of `lanes` neighbouring lanes (a power of two); every lane gets the result.
template <int lanes = 32>
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int other = lanes / 2; other > 0; other /= 2) x += __shfl_xor_sync(kAllLanes, x, other);
  return x;
}

template <int lanes = 32>
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int other = lanes / 2; other > 0; other /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, other));
  }
  return x;
}

}  // namespace decoding::cuda
