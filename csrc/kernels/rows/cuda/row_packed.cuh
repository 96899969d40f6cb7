// Up to 16 bytes of numbers as they lie in memory. They stay packed while they wait in registers:
// as elements, two-byte numbers would take a whole register each.
#pragma once

#include <cstdint>

#include "kernels/cuda/vector.cuh"

namespace decoding::cuda {

__device__ __forceinline__ float2 unpack(__half2 pair) { return __half22float2(pair); }
__device__ __forceinline__ float2 unpack(__nv_bfloat162 pair) { return __bfloat1622float2(pair); }

template <typename T>
struct PairOf;
template <>
struct PairOf<half> {
  using Type = __half2;
  __device__ __forceinline__ static Type of(float a, float b) { return __floats2half2_rn(a, b); }
};
template <>
struct PairOf<bfloat16> {
  using Type = __nv_bfloat162;
  __device__ __forceinline__ static Type of(float a, float b) {
    return __floats2bfloat162_rn(a, b);
  }
};

template <typename T, int count>
struct Packed {
  using Pair = typename PairOf<T>::Type;
  uint4 words;

  __device__ __forceinline__ static Packed load(const T* from) {
    return {*reinterpret_cast<const uint4*>(from)};
  }
  __device__ __forceinline__ void store(T* to) const { *reinterpret_cast<uint4*>(to) = words; }

  __device__ __forceinline__ void unpack(float (&x)[count]) const {
    static_assert(count == 8);
    const uint32_t each[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = cuda::unpack(reinterpret_cast<const Pair&>(each[i]));
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }
  __device__ __forceinline__ static Packed of(const float (&x)[count]) {
    uint32_t each[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Pair pair = PairOf<T>::of(x[2 * i], x[2 * i + 1]);
      each[i] = reinterpret_cast<const uint32_t&>(pair);
    }
    return {{each[0], each[1], each[2], each[3]}};
  }
};

template <>
struct Packed<float, 4> {
  float4 words;

  __device__ __forceinline__ static Packed load(const float* from) {
    return {*reinterpret_cast<const float4*>(from)};
  }
  __device__ __forceinline__ void store(float* to) const { *reinterpret_cast<float4*>(to) = words; }
  __device__ __forceinline__ void unpack(float (&x)[4]) const {
    x[0] = words.x, x[1] = words.y, x[2] = words.z, x[3] = words.w;
  }
  __device__ __forceinline__ static Packed of(const float (&x)[4]) {
    return {{x[0], x[1], x[2], x[3]}};
  }
};

// One number, where rows do not lie on 16 bytes.
template <typename T>
struct Packed<T, 1> {
  T number;

  __device__ __forceinline__ static Packed load(const T* from) { return {*from}; }
  __device__ __forceinline__ void store(T* to) const { *to = number; }
  __device__ __forceinline__ void unpack(float (&x)[1]) const { x[0] = to_float(number); }
  __device__ __forceinline__ static Packed of(const float (&x)[1]) { return {from_float<T>(x[0])}; }
};

}  // namespace decoding::cuda
