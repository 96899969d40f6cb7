// y = softmax(bias(scale * q k^T)) v for each head, over the tokens of all sentences at once.
//
// The softmax is online: the running maximum and sum of the keys so far rescale the result so far.
// Tokens stand in packed rows without padding; sentence b owns the rows
// [offsets[b], offsets[b + 1]). Query head h reads the keys and values of head
// h / (heads / kv_heads) (Ainslie et al. 2023).
//
// The cache type C is T, or one of half the bytes: bfloat16 on the CPU, where each number is
// rounded to the nearest once, and e4m3 with scales (pages.h) beside the GPU's 2-byte types.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "kernels/attention/bias.h"
#include "kernels/attention/keys.h"
#include "kernels/stream.h"

namespace decoding {

// Every token attends to the keys of its own sentence, with `causal` to those up to itself; a token
// without keys gets 0.
template <typename T, typename Keys = PackedKeys<T>>
struct PackedAttentionParams {
  const T* q;              // [tokens, N, D], rows `stride` elements apart
  Keys keys;               // see keys.h
  const int32_t* offsets;  // [sentences + 1]
  T* y;                    // [tokens, N, D], contiguous
  int sentences, longest;  // longest: most queries of a sentence
  int heads, kv_heads, head_dim, stride;
  float scale;
  bool causal;              // only where queries and keys share positions
  AttentionBias bias = {};  // the same
};

template <typename T, typename Keys, cpu::Isa isa>
void packed_attention(cpu::Stream<isa>&, const PackedAttentionParams<T, Keys>&);
template <typename T, typename Keys>
void packed_attention(cuda::Stream&, const PackedAttentionParams<T, Keys>&);

// Keys and values of packed rows go to pages, each sentence's once, whatever its number of beams.
template <typename T, typename C = T>
struct StoreSharedParams {
  const T* k;  // [tokens, Nkv, D], rows `stride` elements apart
  const T* v;  // as k
  PagePool<C> pool;
  const int32_t* cells;  // [tokens], of the pool: page * kPageSize + place in it; -1: not stored
  int tokens, heads, head_dim, stride;  // heads: Nkv
};

template <typename T, typename C, cpu::Isa isa>
void store_shared(cpu::Stream<isa>&, const StoreSharedParams<T, C>&);
template <typename T, typename C>
void store_shared(cuda::Stream&, const StoreSharedParams<T, C>&);

}  // namespace decoding
