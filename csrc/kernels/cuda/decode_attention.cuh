// Online softmax of one query over rows of keys and values, shared out over the lanes of a warp and
// the warps of a block, and how its parts become one.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/online_softmax.cuh"
#include "kernels/cuda/vector.cuh"

namespace decoding::cuda {

constexpr int kTileRows = 4;  // rows of keys, and of values, that a lane has under way together
constexpr int kMaxWarps = 8;  // of a block

// How `lanes` neighbouring lanes hold a row: `vectors` vectors of `width` elements each.
template <int width_, int lanes_, int vectors_>
struct Shape {
  static constexpr int width = width_, lanes = lanes_, vectors = vectors_;
  static constexpr int elements = width * vectors;

  // Where a lane's v-th vector begins.
  __device__ static int at(int v) { return (v * lanes + threadIdx.x % lanes) * width; }
};

// A lane's part of a row of `dim` elements, zero behind the last one.
template <typename T, typename S>
struct Row {
  Vector<T, S::width> vectors[S::vectors] = {};

  __device__ void load(const T* from, int dim) {
#pragma unroll
    for (int v = 0; v < S::vectors; ++v) {
      if (S::at(v) < dim) vectors[v] = Vector<T, S::width>::load(from + S::at(v));
    }
  }
  __device__ void store(T* to, int dim) const {
#pragma unroll
    for (int v = 0; v < S::vectors; ++v) {
      if (S::at(v) < dim) vectors[v].store(to + S::at(v));
    }
  }
  __device__ float operator[](int e) const { return vectors[e / S::width][e % S::width]; }
};

template <typename T, typename S>
struct Tile {
  Row<T, S> k[kTileRows], v[kTileRows];
  bool valid[kTileRows] = {};
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

  // Rows first, first + step, ... of the tile.
  __device__ __forceinline__ void attend(const Tile<T, S>& tile, int first, int step) {
    float weights[kTileRows];
    float top = maximum;
#pragma unroll
    for (int r = first; r < kTileRows; r += step) {
      const float s = score(tile.k[r]);
      weights[r] = tile.valid[r] ? s : kNoScore;
      top = fmaxf(top, weights[r]);
    }
    rescale(top);
#pragma unroll
    for (int r = first; r < kTileRows; r += step) {
      weights[r] = power_of_two(weights[r] - reference(top));
      total += weights[r];
#pragma unroll
      for (int e = 0; e < S::elements; ++e) sum[e] = fmaf(weights[r], tile.v[r][e], sum[e]);
    }
  }

  __device__ __forceinline__ void rescale(float top) {
    const float factor = power_of_two(maximum - reference(top));
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

// Makes one of `count` parts, `stride` floats apart, in one warp: take(d, sum, maximum, total) is
// called once for each element.
template <typename Take>
__device__ void merge_parts(const float* parts, int count, int stride, int dim, Take&& take) {
  static_assert(kSplits <= kMaxWarps);
  float weights[kMaxWarps], maximum = kNoScore, total = 0;
#pragma unroll
  for (int i = 0; i < kMaxWarps; ++i) {
    weights[i] = i < count ? parts[i * stride + dim] : kNoScore;
    maximum = fmaxf(maximum, weights[i]);
  }
#pragma unroll
  for (int i = 0; i < kMaxWarps; ++i) {
    weights[i] = power_of_two(weights[i] - reference(maximum));
    if (i < count) total = fmaf(weights[i], parts[i * stride + dim + 1], total);
  }
  for (int d = threadIdx.x % kWarp; d < dim; d += kWarp) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kMaxWarps; ++i) {
      if (i < count) sum = fmaf(weights[i], parts[i * stride + d], sum);
    }
    take(d, sum, maximum, total);
  }
}

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
