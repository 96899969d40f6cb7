// y = softmax(bias(scale * q k^T)) v for each head, over the tokens of all sentences at once.
//
// The softmax is online: the running maximum and sum of the keys so far rescale the result so far.
// Tokens stand in packed rows without padding; sentence b owns the rows
// [offsets[b], offsets[b + 1]). Query head h reads the keys and values of head
// h / (heads / kv_heads) (Ainslie et al. 2023).
//
// The cache type C is T, or on the CPU also bfloat16, which halves the bytes: each number is
// rounded to the nearest once, and all arithmetic is float32.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "kernels/attention/bias.h"
#include "kernels/stream.h"

namespace decoding {

// Every token attends to the keys of its own sentence, with `causal` to those up to itself; a token
// without keys gets 0. In self-attention queries and keys share their offsets; in cross attention
// keys have offsets of their own.
template <typename T, typename C = T>
struct PackedAttentionParams {
  const T* q;                  // [tokens, N, D], rows `stride` elements apart
  const C* k;                  // [keys, Nkv, D], rows `key_stride` apart, heads `head_stride`
  const C* v;                  // as k
  const int32_t* offsets;      // [sentences + 1], of queries
  const int32_t* key_offsets;  // [sentences + 1], of keys
  T* y;                        // [tokens, N, D], contiguous
  int sentences, longest;      // longest: most queries of a sentence
  int heads, kv_heads, head_dim, stride, key_stride;
  int64_t head_stride;  // D; capacity * D in the layout of store_shared
  float scale;
  bool causal;              // only in self-attention
  AttentionBias bias = {};  // only in self-attention, where queries and keys share positions
};

template <typename T, typename C, cpu::Isa isa>
void packed_attention(cpu::Stream<isa>&, const PackedAttentionParams<T, C>&);
template <typename T>
void packed_attention(cuda::Stream&, const PackedAttentionParams<T>&);

// shared[n, t] = rows[t, n]: keys and values of packed rows in the layout that decode attention
// reads, one head after the other. Each sentence's are stored once, whatever its number of beams.
template <typename T, typename C = T>
struct StoreSharedParams {
  const T* k;                                     // [tokens, Nkv, D], rows `stride` elements apart
  const T* v;                                     // as k
  C* shared_k;                                    // [Nkv, capacity, D]
  C* shared_v;                                    // [Nkv, capacity, D]
  int tokens, heads, head_dim, stride, capacity;  // heads: Nkv
};

template <typename T, typename C, cpu::Isa isa>
void store_shared(cpu::Stream<isa>&, const StoreSharedParams<T, C>&);
template <typename T>
void store_shared(cuda::Stream&, const StoreSharedParams<T>&);

}  // namespace decoding
