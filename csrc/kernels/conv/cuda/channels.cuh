// Neighbouring channels of a token, in float.
#pragma once

#include "kernels/cuda/vector.cuh"

namespace decoding::cuda {

template <int count>
struct Channels {
  float values[count] = {};

  Channels() = default;
  template <typename T>
  __device__ __forceinline__ explicit Channels(const T* from) {
    const auto found = Vector<T, count>::load(from);
#pragma unroll
    for (int i = 0; i < count; ++i) values[i] = found[i];
  }

  __device__ __forceinline__ void add(float weight, const Channels& x) {
#pragma unroll
    for (int i = 0; i < count; ++i) values[i] = fmaf(weight, x.values[i], values[i]);
  }

  template <typename T>
  __device__ __forceinline__ void store(T* to) const {
    Vector<T, count> rounded;
#pragma unroll
    for (int i = 0; i < count; ++i) rounded.values[i] = from_float<T>(values[i]);
    rounded.store(to);
  }
};

}  // namespace decoding::cuda
