// Queries of a warp in registers, and the online softmax of their scores.
//
// A quad of lanes holds a row: lane t of it the columns 2t and 2t + 1 of every 8. Half h of a
// product's registers is row g + 8h of its 16 (tensor_core.cuh).
#pragma once

#include <cstdint>

#include "kernels/attention/cuda/attention.cuh"
#include "kernels/attention/cuda/packed_split.cuh"
#include "kernels/attention/cuda/packed_tiles.cuh"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/cuda/vector.cuh"

namespace decoding::cuda {

// The 16 queries of one product, and their softmax so far.
template <typename P, typename T>
struct Queries {
  static constexpr int kKeys = P::kKeys, dim = P::kDim;
  uint32_t q[dim / 16][4];
  float sums[dim / 8][4] = {};
  float maxima[2] = {kNoScore, kNoScore}, totals[2] = {};  // of rows g, g + 8

  __device__ __forceinline__ void load(RowsOf<P, T> rows) {
#pragma unroll
    for (int d = 0; d < dim / 16; ++d) load_matrices(q[d], by_rows(rows, 0, d * 16));
  }

  // Turns scores into weights, for which everything so far is rescaled.
  __device__ __forceinline__ void weigh(float (&scores)[kKeys / 8][4], float scale) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = maxima[h];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        top = fmaxf(top, fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
      }
      top = warp_max<4>(top);
      const float subtrahend = reference(top) * scale;
      // 1 to the bit where the maximum stays: tiles of which a row sees nothing leave it as it is.
      const float factor = power_of_two((maxima[h] - reference(top)) * scale);
      maxima[h] = top;
      totals[h] *= factor;
#pragma unroll
      for (int d = 0; d < dim / 8; ++d) sums[d][2 * h] *= factor, sums[d][2 * h + 1] *= factor;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int c = 2 * h; c < 2 * h + 2; ++c) {
          scores[n][c] = power_of_two(fmaf(scores[n][c], scale, -subtrahend));
          totals[h] += scores[n][c];
        }
      }
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
  __device__ __forceinline__ void store_partial(Partial<kQueries<P>, dim>& to, int row) const {
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

  // Puts the results where the queries came from, as T.
  __device__ __forceinline__ void store(RowsOf<P, T> rows) {
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

}  // namespace decoding::cuda
