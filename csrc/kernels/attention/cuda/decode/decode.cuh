// The layout of rows of keys and values over the lanes of a warp, and how they are loaded.
#pragma once

#include <cstdint>

#include "kernels/attention/cuda/attention.cuh"
#include "kernels/attention/decode.h"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/cuda/vector.cuh"

namespace decoding::cuda {

constexpr int kTileRows = 4;  // rows of keys, and of values, that a lane asks for at once
constexpr int kMaxWarps = 8;  // of a block

// A row is held by `lanes` neighbouring lanes: `vectors` vectors of `width` elements each.
template <int width_, int lanes_, int vectors_>
struct DecodeConfig {
  static constexpr int width = width_, lanes = lanes_, vectors = vectors_;
  static constexpr int elements = width * vectors;

  // The first element of a lane's v-th vector.
  __device__ static int at(int v) { return (v * lanes + threadIdx.x % lanes) * width; }
};

// 16 bytes, zeros where not `valid`. In assembly, since the compiler makes branches of such loads,
// and then each waits for the one before.
__device__ __forceinline__ void load16(uint32_t* to, const void* from, bool valid) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
      " mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
      " @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
      : "l"(from), "r"(static_cast<int>(valid))
      : "memory");
}

// One number, likewise.
__device__ __forceinline__ int32_t load_number(const int32_t* from, bool valid) {
  int32_t number;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n mov.b32 %0, 0;\n @p ld.global.b32 %0, [%1];\n}"
      : "=r"(number)
      : "l"(from), "r"(static_cast<int>(valid))
      : "memory");
  return number;
}

// 16 bytes to shared memory. They go through L1, where beams find what they have in common.
__device__ __forceinline__ void copy16(uint4* to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}

// A lane's part of a row, as it lies in memory.
template <typename T, typename S>
struct RowFragment {
  static constexpr int per_word = 4 / sizeof(T), count = S::elements / per_word;
  uint32_t words[count];

  __device__ __forceinline__ float operator[](int e) const {
    if constexpr (per_word == 1) {
      return __uint_as_float(words[e]);
    } else {
      const float2 pair = unpack<T>(words[e / 2]);
      return e % 2 == 0 ? pair.x : pair.y;
    }
  }

  // Zeros where not `valid`, and from element `dim` on.
  __device__ __forceinline__ void load(const T* from, int dim, bool valid) {
#pragma unroll
    for (int v = 0; v < S::vectors; ++v) {
      const bool inside = valid && S::at(v) < dim;
      if constexpr (S::width * sizeof(T) == 16) {
        load16(words + 4 * v, from + S::at(v), inside);
      } else {
        const T value = inside ? from[S::at(v)] : from_float<T>(0);
        memcpy(reinterpret_cast<T*>(words) + v, &value, sizeof(T));
      }
    }
  }
  // The same from shared memory.
  __device__ __forceinline__ void load_shared(const T* from, int dim, bool valid) {
#pragma unroll
    for (int v = 0; v < S::vectors; ++v) {
      Vector<T, S::width> vector{};
      if (valid && S::at(v) < dim) vector = Vector<T, S::width>::load(from + S::at(v));
      memcpy(reinterpret_cast<char*>(words) + v * sizeof(vector), &vector, sizeof(vector));
    }
  }
  __device__ __forceinline__ void store(T* to, int dim) const {
#pragma unroll
    for (int v = 0; v < S::vectors; ++v) {
      Vector<T, S::width> vector;
      memcpy(&vector, reinterpret_cast<const char*>(words) + v * sizeof(vector), sizeof(vector));
      if (S::at(v) < dim) vector.store(to + S::at(v));
    }
  }
};

// A barrier for the first `warps` warps of the block, the only ones that come here.
__device__ __forceinline__ void synchronize(int warps) {
  asm volatile("barrier.sync 1, %0;" ::"r"(warps * static_cast<int>(kWarp)) : "memory");
}

// True in the last of `count` warps, one of each block, that call this; it then sees what the
// others wrote before.
__device__ inline bool last_to_arrive(int32_t* counter, int count) {
  const bool leads = threadIdx.x % kWarp == 0;
  __threadfence();
  __syncwarp();
  int before = leads ? atomicAdd(counter, 1) : 0;
  before = __shfl_sync(kAllLanes, before, 0);
  if (before < count - 1) return false;
  if (leads) *counter = 0;
  __threadfence();
  return true;
}

}  // namespace decoding::cuda
