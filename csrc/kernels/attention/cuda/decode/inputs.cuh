// The inputs of a block of a step's attention that the previous kernel writes: its queries, and the
// newest keys and values of their beams. Where there is a rotary transformation
// (kernels/attention/rotary.h), the block's warps apply it to some heads each and leave them in
// shared memory for all others: that costs little beside one more dependent launch.
#pragma once

#include <type_traits>

#include "kernels/attention/cuda/decode/decode.cuh"
#include "kernels/attention/cuda/rotary.cuh"

namespace decoding::cuda {

// tile: the heads and rows of the block.
template <bool with_rope, typename T, typename C, typename S, typename Tile>
class Inputs {
 public:
  // Of shared memory.
  __host__ __device__ static constexpr int bytes(int head_dim) {
    return with_rope ? (Tile::kQueries + Tile::kBeams) * stride(head_dim) * int{sizeof(T)} : 0;
  }

  // Before the wait. memory: bytes() of the block's.
  __device__ __forceinline__ Inputs(const DecodeAttentionParams<T, C>& p, const Tile& tile,
                                    void* memory)
      : p_(p), tile_(tile), rotated_(static_cast<T*>(memory)), rotary_(make_rotary(p, tile)) {}

  // After it, by all warps of the block, before they read anything.
  __device__ __forceinline__ void rotate() const {
    if constexpr (with_rope) {
      const int warps = blockDim.x / kWarp, queries = tile_.count();
      const bool newest = tile_.split == 0 && p_.k != nullptr;
      const int heads = queries + (newest ? tile_.beams : 0);
      for (int i = threadIdx.x / kWarp; i < heads; i += warps) {
        const bool query = i < queries;
        rotary_(query ? given_query(i) : given(p_.k, i - queries), rotated(i), query);
      }
      synchronize(warps);
    }
  }

  __device__ __forceinline__ const T* query(int i) const {
    if constexpr (with_rope) return rotated(i);
    return given_query(i);
  }
  // Query i and the newest key and value of its beam, zeros where not `exists`.
  __device__ __forceinline__ void load(int i, bool exists, RowFragment<T, S>& q,
                                       RowFragment<T, S>& k, RowFragment<T, S>& v) const {
    const int beam = tile_.beam_of(i), dim = p_.head_dim;
    if constexpr (with_rope) {
      q.load_shared(rotated(i), dim, exists);
      k.load_shared(rotated(tile_.count() + beam), dim, exists);
    } else {
      q.load(given_query(i), dim, exists);
      k.load(given(p_.k, beam), dim, exists);
    }
    v.load(given(p_.v, beam), dim, exists);
  }
  __device__ __forceinline__ void load_query(int i, bool exists, RowFragment<T, S>& q) const {
    if constexpr (with_rope) {
      q.load_shared(rotated(i), p_.head_dim, exists);
    } else {
      q.load(given_query(i), p_.head_dim, exists);
    }
  }

 private:
  struct Nothing {};
  static constexpr int kPairs = S::lanes * S::elements / (2 * int{kWarp});  // of a lane
  using OptionalRotary = std::conditional_t<with_rope, WarpRotary<kPairs>, Nothing>;

  // Between heads: whole pieces of 16 bytes, one more than there are, so that queries which are
  // read together lie in different banks.
  __host__ __device__ static constexpr int stride(int head_dim) {
    constexpr int kWidth = 16 / sizeof(T);
    return (head_dim + kWidth - 1) / kWidth * kWidth + kWidth;
  }

  __device__ __forceinline__ static OptionalRotary make_rotary(const DecodeAttentionParams<T, C>& p,
                                                               const Tile& tile) {
    if constexpr (with_rope) {
      const Rotary& rotary = p.rotary;
      return {rotary, p.head_dim,
              rotary.frequencies != nullptr ? rotary.positions[tile.row(p, 0)] : 0};
    } else {
      return {};
    }
  }

  __device__ __forceinline__ T* rotated(int i) const { return rotated_ + i * stride(p_.head_dim); }
  __device__ __forceinline__ const T* given_query(int i) const {
    return p_.q + tile_.row(p_, tile_.beam_of(i)) * p_.stride + tile_.head_of(i) * p_.head_dim;
  }
  // from: k or v.
  __device__ __forceinline__ const T* given(const T* from, int beam) const {
    return from + tile_.row(p_, beam) * p_.stride + tile_.key_head * p_.head_dim;
  }

  const DecodeAttentionParams<T, C>& p_;
  const Tile& tile_;
  T* const rotated_;  // [queries, then newest keys, stride]
  const OptionalRotary rotary_;
};

}  // namespace decoding::cuda
