// The online softmax of several beams over what they share, on tensor cores: like packed attention
// with the beams for queries, of which a product has room for 16 and few are there.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/decode_attention.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace decoding::cuda {

// In a warp: beam g is in lanes 4g to 4g + 3. Head sizes up to 64.
template <typename T, typename S>
class SharedSoftmax {
 public:
  // q: of the first beam, rows `stride` elements apart.
  __device__ __forceinline__ void load(const T* q, int64_t stride, int count, int dim) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int d = i * 8 + column();
      const bool inside = row() < count && d < dim;
      q_[i] = inside ? *reinterpret_cast<const uint32_t*>(q + row() * stride + d) : 0;
    }
  }

  // Tile i of the ring; valid(j) says whether its position j, of 16, is there.
  template <typename Valid>
  __device__ __forceinline__ void attend(const Ring<T, S>& ring, int i, float scale,
                                         Valid&& valid) {
    const int lane = threadIdx.x % kWarp;
    float scores[2][4] = {};
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      uint32_t k[4];
      load_matrices(k, address(ring.piece(i, 0, lane / 16 * 8 + lane % 8, 2 * d + lane / 8 % 2)));
      multiply_add<T>(scores[0], q_[2 * d], 0, q_[2 * d + 1], 0, k[0], k[1]);
      multiply_add<T>(scores[1], q_[2 * d], 0, q_[2 * d + 1], 0, k[2], k[3]);
    }
    float top = maximum_;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float& score = scores[j / 2][j % 2];
      score = valid(j / 2 * 8 + column() + j % 2) ? score * scale : kNoScore;
      top = fmaxf(top, score);
    }
    top = warp_max<4>(top);
    const float factor = exponential<T>(maximum_ - reference(top));
    maximum_ = top;
    total_ *= factor;
#pragma unroll
    for (int n = 0; n < 8; ++n) sums_[n][0] *= factor, sums_[n][1] *= factor;
    uint32_t weights[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 pair = {exponential<T>(scores[h][0] - reference(top)),
                           exponential<T>(scores[h][1] - reference(top))};
      total_ += pair.x + pair.y;
      weights[h] = pack<T>(pair);
    }
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      uint32_t v[4];
      load_transposed(v, address(ring.piece(i, 1, lane % 16, 2 * d + lane / 16)));
      multiply_add<T>(sums_[2 * d], weights[0], 0, weights[1], 0, v[0], v[1]);
      multiply_add<T>(sums_[2 * d + 1], weights[0], 0, weights[1], 0, v[2], v[3]);
    }
  }

  // parts: [count, dim + 2], see Beam::store.
  __device__ __forceinline__ void store(float* parts, int count, int dim) const {
    const float total = warp_sum<4>(total_);
    if (row() >= count) return;
    float* part = parts + row() * (dim + 2);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int d = n * 8 + column();
      if (d < dim) *reinterpret_cast<float2*>(part + d) = {sums_[n][0], sums_[n][1]};
    }
    if (column() > 0) return;
    part[dim] = maximum_;
    part[dim + 1] = total;
  }

 private:
  __device__ static int row() { return threadIdx.x % kWarp / 4; }
  __device__ static int column() { return threadIdx.x % 4 * 2; }
  __device__ static uint32_t address(const uint4* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }

  uint32_t q_[8];          // of every 8 elements, those of the lane's column
  float sums_[8][4] = {};  // of the weighted values, the same; rows from 8 on stay 0
  float maximum_ = kNoScore, total_ = 0;
};

}  // namespace decoding::cuda
