// The online softmax of several queries over the keys that they share, on tensor cores, as in
// packed attention: products have room for 16 queries, of which few are used.
#pragma once

#include <cstdint>

#include "kernels/attention/cuda/attention.cuh"
#include "kernels/attention/cuda/decode/decode.cuh"
#include "kernels/attention/cuda/decode/ring.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace decoding::cuda {

// In a warp: query g is in lanes 4g to 4g + 3. A row of keys or values is in 8 lanes of the ring,
// or in 16, which makes 16 positions of a tile, or 8.
// Tiles: a ring (ring.cuh) or another like it, with matrices.
template <typename T, typename S, typename Tiles = Ring<T, S, true>>
class SharedSoftmax {
 public:
  // The lane's.
  __device__ static int query() { return threadIdx.x % kWarp / 4; }

  // at(query): where it lies.
  template <typename At>
  __device__ __forceinline__ void load(int count, int dim, At&& at) {
    const auto* q = at(query());
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int d = i * 8 + column();
      const bool inside = query() < count && d < dim;
      q_[i] = inside ? *reinterpret_cast<const uint32_t*>(q + d) : 0;
    }
  }

  // Tile i of the ring; adjust(j, score) is the score of the tile's row j that the softmax of the
  // lane's query reads.
  template <typename Adjust>
  __device__ __forceinline__ void attend(const Tiles& ring, int i, float scale, Adjust&& adjust) {
    float scores[kPositions / 8][4] = {};
    multiply_keys(ring, i, scores);
    float top = maximum_;
#pragma unroll
    for (int j = 0; j < kPositions / 4; ++j) {
      float& score = scores[j / 2][j % 2];
      score = adjust(j / 2 * 8 + column() + j % 2, score * scale);
      top = fmaxf(top, score);
    }
    top = warp_max<4>(top);
    const float factor = exponential<T>(maximum_ - reference(top));
    maximum_ = top;
    total_ *= factor;
#pragma unroll
    for (int n = 0; n < kPieces; ++n) sums_[n][0] *= factor, sums_[n][1] *= factor;
    uint32_t weights[kPositions / 8];
#pragma unroll
    for (int h = 0; h < kPositions / 8; ++h) {
      const float2 pair = {exponential<T>(scores[h][0] - reference(top)),
                           exponential<T>(scores[h][1] - reference(top))};
      total_ += pair.x + pair.y;
      weights[h] = pack<T>(pair);
    }
    add_values(ring, i, weights);
  }

  // parts: [count, dim + 2], see Beam::store.
  __device__ __forceinline__ void store(float* parts, int count, int dim) const {
    const float total = warp_sum<4>(total_);
    if (query() >= count) return;
    float* part = parts + query() * (dim + 2);
#pragma unroll
    for (int n = 0; n < kPieces; ++n) {
      const int d = n * 8 + column();
      if (d < dim) *reinterpret_cast<float2*>(part + d) = {sums_[n][0], sums_[n][1]};
    }
    if (column() > 0) return;
    part[dim] = maximum_;
    part[dim + 1] = total;
  }

 private:
  static constexpr int kPieces = S::lanes * S::vectors, kPositions = kTileRows * kWarp / S::lanes;
  static_assert(sizeof(T) == 2 && (kPositions == 16 || kPositions == 8));

  __device__ __forceinline__ void multiply_keys(const Tiles& ring, int i,
                                                float (&scores)[kPositions / 8][4]) const {
    const int lane = threadIdx.x % kWarp;
    if constexpr (kPositions == 16) {
#pragma unroll
      for (int d = 0; d < kPieces; d += 2) {
        uint32_t k[4];
        load_matrices(k, address(ring.piece(i, 0, lane / 16 * 8 + lane % 8, d + lane / 8 % 2)));
        multiply_add<T>(scores[0], q_[d], 0, q_[d + 1], 0, k[0], k[1]);
        multiply_add<T>(scores[1], q_[d], 0, q_[d + 1], 0, k[2], k[3]);
      }
    } else {
      float others[4] = {};  // half of the sum, so that products wait for each other half as often
#pragma unroll
      for (int d = 0; d < kPieces; d += 4) {
        uint32_t k[4];
        load_matrices(k, address(ring.piece(i, 0, lane % 8, d + lane / 8)));
        multiply_add<T>(scores[0], q_[d], 0, q_[d + 1], 0, k[0], k[1]);
        multiply_add<T>(others, q_[d + 2], 0, q_[d + 3], 0, k[2], k[3]);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) scores[0][j] += others[j];
    }
  }

  __device__ __forceinline__ void add_values(const Tiles& ring, int i,
                                             const uint32_t (&weights)[kPositions / 8]) {
    const int lane = threadIdx.x % kWarp;
    if constexpr (kPositions == 16) {
#pragma unroll
      for (int d = 0; d < kPieces; d += 2) {
        uint32_t v[4];
        load_transposed(v, address(ring.piece(i, 1, lane % 16, d + lane / 16)));
        multiply_add<T>(sums_[d], weights[0], 0, weights[1], 0, v[0], v[1]);
        multiply_add<T>(sums_[d + 1], weights[0], 0, weights[1], 0, v[2], v[3]);
      }
    } else {
#pragma unroll
      for (int d = 0; d < kPieces; d += 4) {
        uint32_t v[4];
        load_transposed(v, address(ring.piece(i, 1, lane % 8, d + lane / 8)));
#pragma unroll
        for (int n = 0; n < 4; ++n) multiply_add<T>(sums_[d + n], weights[0], 0, 0, 0, v[n], 0);
      }
    }
  }

  __device__ static int column() { return threadIdx.x % 4 * 2; }
  __device__ static uint32_t address(const uint4* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }

  uint32_t q_[kPieces];          // of every 8 elements, those of the lane's column
  float sums_[kPieces][4] = {};  // of the weighted values, the same; rows from 8 on stay 0
  float maximum_ = kNoScore, total_ = 0;
};

}  // namespace decoding::cuda
