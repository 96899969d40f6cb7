// The two designs of packed attention: which is used, packed_attention.cu decides.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/types.h"

namespace decoding::cuda {

// The sentence of a block, in a grid of heads, sentences and tiles of queries. The last tiles come
// first: where attention is causal, they take longest.
struct Sentence {
  int64_t row, key;  // its first query and key
  int length, keys;  // how many
  int head, begin;   // of the block: its head and its first query

  template <typename T>
  __device__ Sentence(const PackedAttentionParams<T>& p, int queries)
      : row(p.offsets[blockIdx.y]),
        key(p.key_offsets[blockIdx.y]),
        length(p.offsets[blockIdx.y + 1] - p.offsets[blockIdx.y]),
        keys(p.key_offsets[blockIdx.y + 1] - p.key_offsets[blockIdx.y]),
        head(blockIdx.x),
        begin((gridDim.z - 1 - blockIdx.z) * queries) {}

  // Where the head's part of the sentence's first query lies, and of its first key or value.
  template <typename T>
  __device__ const T* queries_of(const PackedAttentionParams<T>& p) const {
    return p.q + row * p.stride + head * p.head_dim;
  }
  template <typename T>
  __device__ const T* keys_of(const T* rows, const PackedAttentionParams<T>& p) const {
    return rows + key * p.key_stride + head * p.head_stride;
  }
};

// What sums are scaled with: nothing stays nothing.
__device__ __forceinline__ float inverse(float total) {
  return total == 0.0f ? 0.0f : 1.0f / total;
}

// On tensor cores: head sizes up to 128, and q, k, v and y aligned to 16 bytes.
template <typename T>
void attend_with_tensor_cores(Stream&, const PackedAttentionParams<T>&);

}  // namespace decoding::cuda
