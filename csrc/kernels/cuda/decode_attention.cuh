// Online softmax of one query over rows of keys and values, shared out over the lanes of a warp and
// the warps of a block, and how its parts become one.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/fused_linear_mma.cuh"
#include "kernels/cuda/online_softmax.cuh"
#include "kernels/cuda/vector.cuh"

namespace decoding::cuda {

constexpr int kTileRows = 4;  // rows of keys, and of values, that a lane asks for at once
constexpr int kMaxWarps = 8;  // of a block

// How `lanes` neighbouring lanes hold a row: `vectors` vectors of `width` elements each.
template <int width_, int lanes_, int vectors_>
struct Shape {
  static constexpr int width = width_, lanes = lanes_, vectors = vectors_;
  static constexpr int elements = width * vectors;

  // Where a lane's v-th vector begins.
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

// The same to shared memory. It goes through L1, where beams find what they have in common.
__device__ __forceinline__ void copy16(uint4* to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}

// A lane's part of a row, as it lies in memory.
template <typename T, typename S>
struct Row {
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
  __device__ __forceinline__ void store(T* to, int dim) const {
#pragma unroll
    for (int v = 0; v < S::vectors; ++v) {
      Vector<T, S::width> vector;
      memcpy(&vector, reinterpret_cast<const char*>(words) + v * sizeof(vector), sizeof(vector));
      if (S::at(v) < dim) vector.store(to + S::at(v));
    }
  }
};

// The tiles that a lane has requested, oldest first, in shared memory that no other lane touches.
// There they arrive without the lane's help, and do not take its registers.
template <typename T, typename S>
class Ring {
 public:
  static constexpr int kTiles = 2;
  static constexpr int kPieces = sizeof(Row<T, S>) / 16;                // of a row
  static constexpr int kBytes = kTiles * 2 * kTileRows * kPieces * 16;  // of a lane

  __device__ explicit Ring(uint4* memory) : own_(memory + threadIdx.x) {}

  // Starts to copy row r, of the keys (which = 0) or values (1), into the place of tile i.
  __device__ __forceinline__ void request(int i, int which, int r, const T* from, int dim,
                                          bool valid) {
    uint4* to = at(i, which, r);
    if constexpr (S::width * sizeof(T) == 16) {
#pragma unroll
      for (int v = 0; v < S::vectors; ++v) {
        copy16(to + v * blockDim.x, from + S::at(v), valid && S::at(v) < dim);
      }
    } else {  // too small pieces for asynchronous copies
      Row<T, S> row;
      row.load(from, dim, valid);
#pragma unroll
      for (int v = 0; v < kPieces; ++v) memcpy(to + v * blockDim.x, row.words + 4 * v, 16);
    }
  }
  // Ends a tile; `valid` has a bit for each of its rows.
  __device__ __forceinline__ void close(uint32_t valid) {
    close_copies();
    valid_ = valid_ >> kTileRows | valid << (kTiles - 1) * kTileRows;
  }

  // The oldest tile, until it is closed again.
  __device__ __forceinline__ void wait() const { wait_for_copies<kTiles - 1>(); }
  __device__ __forceinline__ Row<T, S> read(int i, int which, int r) const {
    Row<T, S> row;
#pragma unroll
    for (int v = 0; v < kPieces; ++v)
      memcpy(row.words + 4 * v, at(i, which, r) + v * blockDim.x, 16);
    return row;
  }
  __device__ __forceinline__ bool valid(int r) const { return (valid_ >> r & 1) != 0; }

 private:
  __device__ __forceinline__ uint4* at(int i, int which, int r) const {
    return own_ + ((i % kTiles * 2 + which) * kTileRows + r) * kPieces * blockDim.x;
  }

  uint4* own_;  // [kTiles, 2, kTileRows, kPieces, threads]
  uint32_t valid_ = 0;
};

// The softmax of one beam's query in one group of lanes.
template <typename T, typename S>
struct Beam {
  float q[S::elements];         // scaled
  float sum[S::elements] = {};  // of the weighted values
  float maximum = kNoScore, total = 0;

  __device__ __forceinline__ float score(const Row<T, S>& k) const {
    float dot = 0;
#pragma unroll
    for (int e = 0; e < S::elements; ++e) dot = fmaf(q[e], k[e], dot);
    return warp_sum<S::lanes>(dot);
  }

  // Turns the scores of a tile into weights; rows first, first + step, ... of it are the beam's.
  __device__ __forceinline__ void weigh(float (&scores)[kTileRows], int first, int step) {
    float top = maximum;
#pragma unroll
    for (int r = first; r < kTileRows; r += step) top = fmaxf(top, scores[r]);
    rescale(top);
#pragma unroll
    for (int r = first; r < kTileRows; r += step) {
      scores[r] = exponential<T>(scores[r] - reference(top));
      total += scores[r];
    }
  }

  __device__ __forceinline__ void add(float weight, const Row<T, S>& v) {
#pragma unroll
    for (int e = 0; e < S::elements; ++e) sum[e] = fmaf(weight, v[e], sum[e]);
  }

  __device__ __forceinline__ void rescale(float top) {
    const float factor = exponential<T>(maximum - reference(top));
    maximum = top;
    total *= factor;
#pragma unroll
    for (int e = 0; e < S::elements; ++e) sum[e] *= factor;
  }

  // Over the groups of a warp; every one gets the result.
  __device__ __forceinline__ void merge() {
    float top = maximum;
#pragma unroll
    for (int other = S::lanes; other < static_cast<int>(kWarp); other *= 2) {
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, other));
    }
    rescale(top);
#pragma unroll
    for (int other = S::lanes; other < static_cast<int>(kWarp); other *= 2) {
      total += __shfl_xor_sync(kAllLanes, total, other);
#pragma unroll
      for (int e = 0; e < S::elements; ++e) sum[e] += __shfl_xor_sync(kAllLanes, sum[e], other);
    }
  }

  // A part: sum [dim], maximum, total.
  __device__ __forceinline__ void store(float* part, int dim) const {
    if (threadIdx.x % kWarp >= S::lanes) return;
#pragma unroll
    for (int e = 0; e < S::elements; ++e) {
      const int d = S::at(e / S::width) + e % S::width;
      if (d < dim) part[d] = sum[e];
    }
    if (threadIdx.x % kWarp == 0) {
      part[dim] = maximum;
      part[dim + 1] = total;
    }
  }
};

// What `count` parts of one beam, `stride` floats apart, are together.
template <typename T>
struct Merged {
  float weights[kMaxWarps];  // of each part
  float maximum = kNoScore, total = 0;

  __device__ __forceinline__ Merged(const float* parts, int count, int stride, int dim) {
    static_assert(kSplits <= kMaxWarps);
#pragma unroll
    for (int i = 0; i < kMaxWarps; ++i) {
      weights[i] = i < count ? parts[i * stride + dim] : kNoScore;
      maximum = fmaxf(maximum, weights[i]);
    }
#pragma unroll
    for (int i = 0; i < kMaxWarps; ++i) {
      weights[i] = exponential<T>(weights[i] - reference(maximum));
      if (i < count) total = fmaf(weights[i], parts[i * stride + dim + 1], total);
    }
  }

  // Element d of the weighted values.
  __device__ __forceinline__ float sum(const float* parts, int count, int stride, int d) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kMaxWarps; ++i) {
      if (i < count) sum = fmaf(weights[i], parts[i * stride + d], sum);
    }
    return sum;
  }
};

// Whether this block is the last of `count` to get here; it then sees what the others wrote before.
__device__ inline bool last_to_arrive(int32_t* ticket, int count) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(ticket, 1) == count - 1;
    if (last) *ticket = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

}  // namespace decoding::cuda
