// What a block of a step's attention reads of the product before it: its queries, and the newest
// keys and values of their beams. Where queries and keys turn (kernels/attention/rotary.h), its
// warps share out the heads and leave them in shared memory, from where all others take them: that
// costs little beside a stage of its own.
#pragma once

#include <type_traits>

#include "kernels/attention/cuda/decode.cuh"
#include "kernels/attention/cuda/rotary.cuh"

namespace decoding::cuda {

// share: says which heads of which rows are the block's.
template <bool turns, typename T, typename S, typename Share>
class Inputs {
 public:
  // Of shared memory.
  __host__ __device__ static constexpr int bytes(int head_dim) {
    return turns ? (Share::kQueries + Share::kBeams) * stride(head_dim) * int{sizeof(T)} : 0;
  }

  // Before the wait. memory: bytes() of the block's.
  __device__ __forceinline__ Inputs(const DecodeAttentionParams<T>& p, const Share& share,
                                    void* memory)
      : p_(p), share_(share), turned_(static_cast<T*>(memory)), turn_(make_turn(p, share)) {}

  // After it, by all warps of the block, before they read anything.
  __device__ __forceinline__ void turn() const {
    if constexpr (turns) {
      const int warps = blockDim.x / kWarp, queries = share_.count();
      const bool newest = share_.split == 0 && p_.k != nullptr;
      const int heads = queries + (newest ? share_.beams : 0);
      for (int i = threadIdx.x / kWarp; i < heads; i += warps) {
        const bool query = i < queries;
        turn_(query ? given_query(i) : given(p_.k, i - queries), turned(i), query);
      }
      synchronize(warps);
    }
  }

  __device__ __forceinline__ const T* query(int i) const {
    if constexpr (turns) return turned(i);
    return given_query(i);
  }
  // Query i and the newest key and value of its beam, zeros where not `exists`.
  __device__ __forceinline__ void load(int i, bool exists, Row<T, S>& q, Row<T, S>& k,
                                       Row<T, S>& v) const {
    const int beam = share_.beam_of(i), dim = p_.head_dim;
    if constexpr (turns) {
      q.load_shared(turned(i), dim, exists);
      k.load_shared(turned(share_.count() + beam), dim, exists);
    } else {
      q.load(given_query(i), dim, exists);
      k.load(given(p_.k, beam), dim, exists);
    }
    v.load(given(p_.v, beam), dim, exists);
  }
  __device__ __forceinline__ void load_query(int i, bool exists, Row<T, S>& q) const {
    if constexpr (turns) {
      q.load_shared(turned(i), p_.head_dim, exists);
    } else {
      q.load(given_query(i), p_.head_dim, exists);
    }
  }

 private:
  struct Nothing {};
  static constexpr int kPairs = S::lanes * S::elements / (2 * int{kWarp});  // of a lane
  using Turning = std::conditional_t<turns, Turn<kPairs>, Nothing>;

  // Between heads: whole pieces of 16 bytes, one more than there are, so that queries which are
  // read together lie in different banks.
  __host__ __device__ static constexpr int stride(int head_dim) {
    constexpr int kWidth = 16 / sizeof(T);
    return (head_dim + kWidth - 1) / kWidth * kWidth + kWidth;
  }

  __device__ __forceinline__ static Turning make_turn(const DecodeAttentionParams<T>& p,
                                                      const Share& share) {
    if constexpr (turns) {
      const Rotation& rotation = p.rotation;
      return {rotation, p.head_dim,
              rotation.frequencies != nullptr ? rotation.at[share.row(p, 0)] : 0};
    } else {
      return {};
    }
  }

  __device__ __forceinline__ T* turned(int i) const { return turned_ + i * stride(p_.head_dim); }
  __device__ __forceinline__ const T* given_query(int i) const {
    return p_.q + share_.row(p_, share_.beam_of(i)) * p_.stride + share_.head_of(i) * p_.head_dim;
  }
  // from: k or v.
  __device__ __forceinline__ const T* given(const T* from, int beam) const {
    return from + share_.row(p_, beam) * p_.stride + share_.key_head * p_.head_dim;
  }

  const DecodeAttentionParams<T>& p_;
  const Share& share_;
  T* const turned_;  // [queries, then newest keys, stride]
  const Turning turn_;
};

}  // namespace decoding::cuda
