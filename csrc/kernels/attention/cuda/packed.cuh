// The two designs of packed attention: which is used, packed.cu decides.
#pragma once

#include "kernels/attention/cuda/attention.cuh"
#include "kernels/attention/packed.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/types.h"

namespace decoding::cuda {

// The sentence of a block, in a grid of heads, sentences and tiles of queries. The last tiles come
// first: where attention is causal, they take longest.
struct Sentence {
  int64_t row;      // its first query
  int length;       // its queries
  int head, begin;  // of the block: its head and its first query

  template <typename Params>
  __device__ Sentence(const Params& p, int queries)
      : row(p.offsets[blockIdx.y]),
        length(p.offsets[blockIdx.y + 1] - p.offsets[blockIdx.y]),
        head(blockIdx.x),
        begin((gridDim.z - 1 - blockIdx.z) * queries) {}

  // The head's part of the sentence's first query, and of its keys and values.
  template <typename Params>
  __device__ auto queries_of(const Params& p) const {
    return p.q + row * p.stride + head * p.head_dim;
  }
  template <typename Params>
  __device__ auto keys_of(const Params& p) const {
    return p.keys.of(p, blockIdx.y, head / heads_of_a_key(p.heads, p.kv_heads));
  }
};

// The keys that the queries of a block see, by their positions. with_bias: there may be a window.
template <bool with_bias>
struct View {
  int first, end;  // no query sees keys outside
  int keys, window;
  bool causal;

  // query: the block's first.
  template <typename Params>
  __device__ View(const Params& p, int query, int queries, int keys)
      : first(0),
        end(p.causal ? min(keys, query + queries) : keys),
        keys(keys),
        window(0),
        causal(p.causal) {
    if constexpr (with_bias) {
      window = p.bias.window;
      if (window > 0) first = max(0, query - window + 1);
    }
  }

  __device__ __forceinline__ bool sees(int query, int key) const {
    if (key >= keys || (causal && key > query)) return false;
    return !with_bias || window == 0 || query - key < window;
  }
  // Whether all of `queries` from `query` on see all of `count` keys from `key` on.
  __device__ __forceinline__ bool sees_all(int query, int queries, int key, int count) const {
    if (key + count > keys || (causal && key + count - 1 > query)) return false;
    return !with_bias || window == 0 || query + queries - 1 - key < window;
  }
};

// The factor of sums; 0 where nothing was added up.
__device__ __forceinline__ float inverse(float total) {
  return total == 0.0f ? 0.0f : 1.0f / total;
}

// On tensor cores: whole pieces of 16 bytes in a head, and q, k, v and y aligned to them.
// with_bias: scores have a bias; a kernel without it has no branch for it.
template <bool with_bias, typename T, typename Keys>
void attend_with_tensor_cores(Stream&, const PackedAttentionParams<T, Keys>&);

}  // namespace decoding::cuda
