// y = softmax(q k^T) v for one query, by an online softmax: the rows of keys and values are divided
// over the lanes of a warp and the warps of a block, whose partial results are then merged.
#pragma once

#include <cstdint>

#include "kernels/attention/cuda/decode/decode.cuh"

namespace decoding::cuda {

// The softmax of one beam's query in one group of lanes.
template <typename T, typename S>
struct QuerySoftmax {
  float q[S::elements];         // scaled
  float sum[S::elements] = {};  // of the weighted values
  float maximum = kNoScore, total = 0;

  __device__ __forceinline__ float score(const RowFragment<T, S>& k) const {
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

  __device__ __forceinline__ void add(float weight, const RowFragment<T, S>& v) {
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

  // A part: sum [dim], maximum, total.
  __device__ __forceinline__ void store(float* part, int dim) const {
#pragma unroll
    for (int e = 0; e < S::elements; e += kTwo) {
      if (element(e) >= dim) continue;
      if constexpr (kTwo == 2) {
        *reinterpret_cast<float2*>(part + element(e)) = {sum[e], sum[e + 1]};
      } else {
        part[element(e)] = sum[e];
      }
    }
    if (element(0) > 0) return;
    part[dim] = maximum;
    part[dim + 1] = total;
  }

  __device__ __forceinline__ void absorb(const float* part, int dim) {
    absorb_some<1>(part, 1, 0, dim);
  }
  // `count` parts, `stride` floats apart.
  __device__ __forceinline__ void absorb(const float* parts, int count, int stride, int dim) {
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (int i = 0; i < count; i += kAtOnce) {
      absorb_some<kAtOnce>(parts + i * stride, count - i, stride, dim);
    }
  }

  __device__ __forceinline__ RowFragment<T, S> result() const {
    const float normaliser = total == 0 ? 0.0f : 1.0f / total;
    RowFragment<T, S> row;
#pragma unroll
    for (int i = 0; i < RowFragment<T, S>::count; ++i) {
      if constexpr (RowFragment<T, S>::per_word == 1) {
        row.words[i] = __float_as_uint(sum[i] * normaliser);
      } else {
        row.words[i] = pack<T>({sum[2 * i] * normaliser, sum[2 * i + 1] * normaliser});
      }
    }
    return row;
  }

 private:
  static constexpr int kTwo = S::width > 1 ? 2 : 1;  // elements that are stored together

  __device__ static int element(int e) { return S::at(e / S::width) + e % S::width; }

  // The first `most` of `count` parts.
  template <int most>
  __device__ __forceinline__ void absorb_some(const float* parts, int count, int stride, int dim) {
    float weights[most], top = maximum;
#pragma unroll
    for (int i = 0; i < most; ++i) {
      weights[i] = i < count ? parts[i * stride + dim] : kNoScore;
      top = fmaxf(top, weights[i]);
    }
    rescale(top);
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const float* part = parts + i * stride;
      const float weight = exponential<T>(weights[i] - reference(top));
      total = fmaf(weight, i < count ? part[dim + 1] : 0.0f, total);
#pragma unroll
      for (int e = 0; e < S::elements; e += kTwo) {
        const bool there = i < count && element(e) < dim;
        if constexpr (kTwo == 2) {
          const float2 pair =
              there ? *reinterpret_cast<const float2*>(part + element(e)) : make_float2(0.0f, 0.0f);
          sum[e] = fmaf(weight, pair.x, sum[e]);
          sum[e + 1] = fmaf(weight, pair.y, sum[e + 1]);
        } else {
          sum[e] = fmaf(weight, there ? part[element(e)] : 0.0f, sum[e]);
        }
      }
    }
  }
};

// The beams of a warp after its groups have merged: each group has some of them to itself.
template <typename T, typename S, int beams>
struct MergedGroups {
  static constexpr int kGroups = kWarp / S::lanes;
  static constexpr int kHeld = beams > kGroups ? beams / kGroups : 1;  // by each group
  int first = 0;       // of the beams that the lane's group holds
  bool speaks = true;  // where several groups hold the same, one speaks for it

  __device__ __forceinline__ MergedGroups() {
    int held = beams;
#pragma unroll
    for (int other = S::lanes; other < static_cast<int>(kWarp); other *= 2) {
      const bool upper = (threadIdx.x & other) != 0;
      if (held == 1) {
        speaks &= !upper;
      } else {
        held /= 2;
        if (upper) first += held;
      }
    }
  }

  // Leaves the beams from `first` on in states[0], states[1], ...
  __device__ __forceinline__ void merge(QuerySoftmax<T, S> (&states)[beams]) const {
#pragma unroll
    for (int b = 0; b < beams; ++b) {
      float top = states[b].maximum;
#pragma unroll
      for (int other = S::lanes; other < static_cast<int>(kWarp); other *= 2) {
        top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, other));
      }
      states[b].rescale(top);
    }
    add<beams, S::lanes>(states);
  }

 private:
  // Groups whose lanes differ in the bit `other` tile out the `held` beams that both have.
  template <int held, int other>
  __device__ __forceinline__ static void add(QuerySoftmax<T, S> (&states)[beams]) {
    if constexpr (other < static_cast<int>(kWarp)) {
      constexpr int kKept = held > 1 ? held / 2 : 1;
      const bool upper = held > 1 && (threadIdx.x & other) != 0;
#pragma unroll
      for (int b = 0; b < kKept; ++b) {
        QuerySoftmax<T, S>&low = states[b], &high = states[held - kKept + b];
        const auto exchange = [&](float a, float b) {
          return (upper ? b : a) + __shfl_xor_sync(kAllLanes, upper ? a : b, other);
        };
        low.total = exchange(low.total, high.total);
#pragma unroll
        for (int e = 0; e < S::elements; ++e) low.sum[e] = exchange(low.sum[e], high.sum[e]);
        low.maximum = upper ? high.maximum : low.maximum;
      }
      add<kKept, other * 2>(states);
    }
  }
};

}  // namespace decoding::cuda
