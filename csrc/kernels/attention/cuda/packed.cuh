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
  int64_t row, key;  // its first query and key
  int length, keys;  // how many
  int head, begin;   // of the block: its head and its first query
  int key_head;

  template <typename T>
  __device__ Sentence(const PackedAttentionParams<T>& p, int queries)
      : row(p.offsets[blockIdx.y]),
        key(p.key_offsets[blockIdx.y]),
        length(p.offsets[blockIdx.y + 1] - p.offsets[blockIdx.y]),
        keys(p.key_offsets[blockIdx.y + 1] - p.key_offsets[blockIdx.y]),
        head(blockIdx.x),
        begin((gridDim.z - 1 - blockIdx.z) * queries),
        key_head(head / heads_of_a_key(p.heads, p.kv_heads)) {}

  // The head's part of the sentence's first query, and of its first key or value.
  template <typename T>
  __device__ const T* queries_of(const PackedAttentionParams<T>& p) const {
    return p.q + row * p.stride + head * p.head_dim;
  }
  template <typename T>
  __device__ const T* keys_of(const T* rows, const PackedAttentionParams<T>& p) const {
    return rows + key * p.key_stride + key_head * p.head_stride;
  }
};

// The keys that the queries of a block see. with_bias: there may be a window.
template <bool with_bias>
struct View {
  int first, end;  // no query sees keys outside
  int keys, window;
  bool causal;

  template <typename T>
  __device__ View(const PackedAttentionParams<T>& p, const Sentence& sentence, int queries)
      : first(0),
        end(p.causal ? min(sentence.keys, sentence.begin + queries) : sentence.keys),
        keys(sentence.keys),
        window(0),
        causal(p.causal) {
    if constexpr (with_bias) {
      window = p.bias.window;
      if (window > 0) first = max(0, sentence.begin - window + 1);
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
template <bool with_bias, typename T>
void attend_with_tensor_cores(Stream&, const PackedAttentionParams<T>&);

}  // namespace decoding::cuda
