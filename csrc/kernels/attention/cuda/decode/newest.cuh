// The newest position of a row, which stems from the previous kernel: it opens the softmax, and its
// key and value go to their place.
#pragma once

#include <cstdint>

#include "kernels/attention/cuda/decode/decode.cuh"
#include "kernels/attention/cuda/decode/softmax.cuh"
#include "kernels/attention/cuda/decode/tile.cuh"
#include "kernels/attention/cuda/float8.cuh"

namespace decoding::cuda {

// A query and its beam's newest position, in a group of lanes; zeros where it does not exist.
template <typename T, typename S>
struct Newest {
  RowFragment<T, S> q, k, v;
  bool exists;

  Newest() = default;

  // inputs: inputs.cuh
  template <typename Inputs>
  __device__ __forceinline__ Newest(const Inputs& inputs, int query, bool exists) : exists(exists) {
    inputs.load(query, exists, q, k, v);
  }

  // The softmax that has seen nothing else.
  template <bool with_bias, typename C>
  __device__ __forceinline__ QuerySoftmax<T, S> open(const DecodeAttentionParams<T, C>& p,
                                                     int head) const {
    QuerySoftmax<T, S> state;
#pragma unroll
    for (int e = 0; e < S::elements; ++e) state.q[e] = q[e] * p.scale;
    float score = state.score(k);
    if constexpr (with_bias) score = apply_bias(p.bias, head, score, 0);
    state.maximum = exists ? score : kNoScore;
    state.total = exists ? 1.0f : 0.0f;
#pragma unroll
    for (int e = 0; e < S::elements; ++e) state.sum[e] = v[e];
    return state;
  }

  // Key and value go to their place in the history of a beam.
  template <typename C>
  __device__ __forceinline__ void put(const DecodeAttentionParams<T, C>& p, const WorkTile& tile,
                                      int key_head, int beam) const {
    const HeadCells cells = p.pool.cells(p.self_pages.of(tile.sentence), key_head, p.head_dim);
    const int cell = tile.self_length * p.slots + beam;
    const size_t to = cells.offset(cell);
    if constexpr (kIsFloat8<C>) {
      const size_t scale = p.pool.first_cell(key_head) + cells.in_head(cell);
      store_float8(k, p.pool.k + to, p.pool.k_scales + scale, p.head_dim);
      store_float8(v, p.pool.v + to, p.pool.v_scales + scale, p.head_dim);
    } else {
      k.store(p.pool.k + to, p.head_dim);
      v.store(p.pool.v + to, p.head_dim);
    }
  }
};

}  // namespace decoding::cuda
