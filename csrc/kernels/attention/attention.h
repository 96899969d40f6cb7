// y = softmax(scale * q k^T) v for each head, with an online softmax: the running maximum m and sum
// l of the blocks so far rescale what has been added up.
//
// Tokens of all sentences stand in packed rows without padding; sentence b owns the rows
// [offsets[b], offsets[b + 1]).
//
// What a step reads again is kept in C: T, or on the CPU also bfloat16, which halves the bytes;
// each number is rounded to the nearest once, and all arithmetic is float32.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "kernels/attention/rotary.h"
#include "kernels/search/step.h"
#include "kernels/stream.h"

namespace decoding {

constexpr int kMaxHeadDim = 256;

// From scale * q k^T to what the softmax sees. With d the distance, the query's position less the
// key's:
//   x = cap * tanh(x / cap)                   cap: Gemma 2's
//   x = x - slope[head] * d                   ALiBi (Press et al. 2022)
//   x = x + table[head][clamp(d) + reach]     T5's relative positions (Raffel et al. 2020)
//   x = -inf where d >= window                Mistral's sliding window
struct ScoreRules {
  float cap = 0.0f;               // 0: none
  int window = 0;                 // 0: none
  const float* slopes = nullptr;  // [N], null: none
  const float* table = nullptr;   // [N, 2 * reach + 1], null: none; d clamped to -reach .. reach
  int reach = 0;

  bool any() const { return cap > 0 || window > 0 || slopes != nullptr || table != nullptr; }
};

// Query heads share keys and values: head h has those of head h / (heads / kv_heads) (Ainslie et
// al. 2023).

// Every token attends to the keys of its own sentence (causal: to those up to itself); one without
// any gets 0. Self-attention: keys are as many as queries, and have their offsets. Cross attention:
// keys have offsets of their own.
template <typename T, typename C = T>
struct PackedAttentionParams {
  const T* q;  // [tokens, N, D], rows `stride` elements apart
  const C* k;  // [keys, kv_heads, D], rows `key_stride` apart, heads `head_stride`; so is v
  const C* v;
  const int32_t* offsets;      // [sentences + 1], of queries
  const int32_t* key_offsets;  // [sentences + 1], of keys
  T* y;                        // [tokens, N, D], contiguous
  int sentences, longest;      // longest: most queries of a sentence
  int heads, kv_heads, head_dim, stride, key_stride;
  int64_t head_stride;  // D; capacity * D where they lie as store_shared leaves them
  float scale;
  bool causal;            // only in self-attention
  ScoreRules rules = {};  // only in self-attention, where distances mean something
};

template <typename T, typename C, cpu::Isa isa>
void packed_attention(cpu::Stream<isa>&, const PackedAttentionParams<T, C>&);
template <typename T>
void packed_attention(cuda::Stream&, const PackedAttentionParams<T>&);

// Keys and values of packed rows go where decode attention reads them, one head after the other:
// each sentence's are stored once, whatever its number of beams. Heads are those of the keys.
template <typename T, typename C = T>
struct StoreSharedParams {
  const T* k;  // [tokens, N, D], rows `stride` elements apart; so is v
  const T* v;
  C* shared_k;  // [N, capacity, D]
  C* shared_v;  // [N, capacity, D]
  int tokens, heads, head_dim, stride, capacity;
};

template <typename T, typename C, cpu::Isa isa>
void store_shared(cpu::Stream<isa>&, const StoreSharedParams<T, C>&);
template <typename T>
void store_shared(cuda::Stream&, const StoreSharedParams<T>&);

// One new token per row attends to its sentence's shared keys (the source, or the prompt), then to
// its own history. History is found through an indirection table (FasterTransformer's): a beam
// reorder rewrites `slots`, never keys or values. There are two tables, since the one of the next
// step is made from the present one: step g reads table g % 2.
//
// Keys and values have kv_heads heads (Nkv). Live row i * beams + j is beam j of sentence live[i],
// and belongs to slot live[i] * beams + j. Where k is given, each row's new key and value are first
// written to its own slot at the step's position, and the row's history is the positions 0 ..
// position, the last one in its own slot. Where there is a rotation, queries and new keys go
// through it first: on CUDA on their way into attention, so that a step has a stage less, on the
// CPU in place. The rows of a sentence then have one position, and k lies right behind q.
template <typename T, typename C = T>
struct DecodeAttentionParams {
  const StepState* now;  // live_count, and where there is history number and position
  T* q;                  // [sentences * beams, N, D], rows `stride` apart; so are k, v
  const T* k = nullptr;  // [sentences * beams, Nkv, D]; null without history (cross attention)
  const T* v = nullptr;  // null with k
  const C* shared_k = nullptr;  // [Nkv, shared_capacity, D], null where nothing is shared
  const C* shared_v = nullptr;  // [Nkv, shared_capacity, D]
  const int32_t* shared_offsets = nullptr;  // [B + 1], rows of a sentence in shared_k
  C* self_k = nullptr;                      // [slots, Nkv, target, D]
  C* self_v = nullptr;                      // [slots, Nkv, target, D]
  const int32_t* slots = nullptr;  // [2, total_slots, target]: slot that holds a position of a row
  const int32_t* live;             // [sentences], sentence ids, of which live_count count
  T* y;                            // [sentences * beams, N, D], contiguous
  float* partial = nullptr;        // CUDA: [partial_size(head_dim)], scratch
  int32_t* tickets = nullptr;      // CUDA: [kTickets], 0 before and after
  int sentences;                   // at least live_count: a captured step is made for so many
  int beams, heads, kv_heads, head_dim, stride;
  int shared_capacity = 0, target = 0, total_slots = 0;
  float scale;             // above 0
  ScoreRules rules = {};   // only where there is history: shared keys, then history, are positions
  Rotation rotation = {};  // only where there is history
};

// Where sentences * heads leave a GPU idle, blocks share a long history and leave partial results:
// of each query the weighted sum [D], the maximum and the sum of exponentials.
constexpr int kSplits = 8;       // most blocks that share a history
constexpr int kTickets = 256;    // histories that may be shared
constexpr int kParts = 512;      // blocks that may leave partial results
constexpr int kPartQueries = 8;  // most queries of a block

inline int64_t partial_size(int head_dim) {
  return int64_t{kParts} * kPartQueries * (head_dim + 2);
}

template <typename T, typename C, cpu::Isa isa>
void decode_attention(cpu::Stream<isa>&, const DecodeAttentionParams<T, C>&);
template <typename T>
void decode_attention(cuda::Stream&, const DecodeAttentionParams<T>&);

// How much a row of a step attends to each position of its source: the mean over the heads of
// softmax(scale * q k^T), which decode attention weighs the values with. It is kept step by step; a
// step without a number (a prompt's) leaves nothing.
template <typename T, typename C = T>
struct AttentionWeightsParams {
  const StepState* now;           // number, live_count
  const T* q;                     // [sentences * beams, N, D], rows `stride` elements apart
  const C* shared_k;              // [Nkv, shared_capacity, D]
  const int32_t* shared_offsets;  // [B + 1], rows of a sentence in shared_k
  const int32_t* live;            // [sentences], sentence ids, of which live_count count
  float* y;       // [steps, total_slots, longest], at [number - 1, slot of the row];
                  // 0 behind a source's end
  int sentences;  // at least live_count
  int beams, heads, kv_heads, head_dim, stride;
  int shared_capacity, total_slots;
  int longest;  // at least the positions of any source
  float scale;
};

template <typename T, typename C, cpu::Isa isa>
void attention_weights(cpu::Stream<isa>&, const AttentionWeightsParams<T, C>&);
template <typename T>
void attention_weights(cuda::Stream&, const AttentionWeightsParams<T>&);

}  // namespace decoding
