// The online softmax of 16 queries of a warp, in registers.
//
// A quad of lanes holds a row: lane t of it the columns 2t and 2t + 1 of every 8. Half h of a
// product's registers is row g + 8h of its 16 (tensor_core.cuh).
#pragma once

#include <cstdint>

#include "kernels/attention/cuda/attention.cuh"
#include "kernels/attention/cuda/packed.cuh"
#include "kernels/attention/cuda/packed_split.cuh"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/cuda/vector.cuh"

namespace decoding::cuda {

template <int dim>
struct OnlineSoftmax {
  float sums[dim / 8][4] = {};
  float maxima[2] = {kNoScore, kNoScore}, totals[2] = {};  // of rows g, g + 8

  // Turns scores into weights. What has been summed up so far is to be rescaled by `factors`.
  template <int eights>
  __device__ __forceinline__ void weigh(float (&scores)[eights][4], float scale,
                                        float (&factors)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = maxima[h];
#pragma unroll
      for (int n = 0; n < eights; ++n) {
        top = fmaxf(top, fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
      }
      top = warp_max<4>(top);
      const float subtrahend = reference(top) * scale;
      // 1 to the bit where the maximum stays: tiles of which a row sees nothing leave it as it is.
      factors[h] = power_of_two((maxima[h] - reference(top)) * scale);
      maxima[h] = top;
      totals[h] *= factors[h];
#pragma unroll
      for (int n = 0; n < eights; ++n) {
#pragma unroll
        for (int c = 2 * h; c < 2 * h + 2; ++c) {
          scores[n][c] = power_of_two(fmaf(scores[n][c], scale, -subtrahend));
          totals[h] += scores[n][c];
        }
      }
    }
  }

  __device__ __forceinline__ void rescale(const float (&factors)[2]) {
#pragma unroll
    for (int d = 0; d < dim / 8; ++d) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[d][c] *= factors[c / 2];
    }
  }

  __device__ __forceinline__ bool finite() const {
    float broken = 0.0f;
#pragma unroll
    for (int d = 0; d < dim / 8; ++d) {
#pragma unroll
      for (int c = 0; c < 4; ++c) probe(broken, sums[d][c]);
    }
    return broken == 0.0f;
  }

  // Puts what has been found so far into the rows from `row` on.
  template <int queries>
  __device__ __forceinline__ void store_partial(Partial<queries, dim>& to, int row) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = row + lane / 4 + 8 * h;
      const float total = warp_sum<4>(totals[h]);
      if (lane % 4 == 0) to.maxima[at] = maxima[h], to.totals[at] = total;
#pragma unroll
      for (int d = 0; d < dim / 8; ++d) {
        *reinterpret_cast<float2*>(&to.sums[at][d * 8 + lane % 4 * 2]) =
            make_float2(sums[d][2 * h], sums[d][2 * h + 1]);
      }
    }
  }

  // Puts the results into rows of T in shared memory.
  template <typename T, typename Rows>
  __device__ __forceinline__ void store(const Rows& rows) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float normaliser = inverse(warp_sum<4>(totals[h]));
#pragma unroll
      for (int d = 0; d < dim / 8; ++d) {
        const uint32_t pair =
            pack<T>(make_float2(sums[d][2 * h] * normaliser, sums[d][2 * h + 1] * normaliser));
        asm volatile(
            "st.shared.u32 [%0], %1;" ::"r"(rows.at(lane / 4 + 8 * h, d * 8 + lane % 4 * 2)),
            "r"(pair)
            : "memory");
      }
    }
  }
};

// See(query, key, score): the score that the softmax reads. The first query and key are those of
// the square and of the tile.
template <int eights, typename See>
__device__ __forceinline__ void adjust(float (&scores)[eights][4], int query, int key, See&& see) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int n = 0; n < eights; ++n) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int row = lane / 4 + c / 2 * 8, column = n * 8 + lane % 4 * 2 + c % 2;
      scores[n][c] = see(query + row, key + column, scores[n][c]);
    }
  }
}

// Biases scores, hides those of keys that a query does not see, and makes weights of them. query,
// key: the positions of the first ones. factors: see OnlineSoftmax.
template <bool with_bias, int dim, int eights, typename Params>
__device__ __forceinline__ void weigh(OnlineSoftmax<dim>& softmax, float (&scores)[eights][4],
                                      const Params& p, int head, const View<with_bias>& view,
                                      int query, int key, float (&factors)[2]) {
  float scale = p.scale;
  if constexpr (with_bias) {
    adjust(scores, query, key, [&](int i, int j, float score) {
      return apply_bias(p.bias, head, score * p.scale, i - j);
    });
    scale = 1.0f;
  }
  if (!view.sees_all(query, 16, key, 8 * eights)) {
    adjust(scores, query, key,
           [&](int i, int j, float score) { return view.sees(i, j) ? score : kNoScore; });
  }
  softmax.weigh(scores, scale * kLog2e, factors);
}

// Weights as the first factor of a product, 16 keys of it.
template <typename T, int eights>
__device__ __forceinline__ void pack_weights(uint32_t (&to)[4], const float (&weights)[eights][4],
                                             int n) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* pair = &weights[2 * n + i / 2][i % 2 * 2];
    to[i] = pack<T>(make_float2(pair[0], pair[1]));
  }
}
}  // namespace decoding::cuda
