// y = softmax(bias(scale * q k^T)) v for one new token per row: over the keys that its sentence
// shares (the source, or the prompt), then over the row's own history.
//
// History is found through an indirection table (FasterTransformer's): a beam reorder rewrites the
// table, never keys or values. There are two tables, since the next step's is made from the present
// one: step g of a sentence reads table g % 2.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/types.h"
#include "kernels/attention/bias.h"
#include "kernels/attention/pages.h"
#include "kernels/attention/rotary.h"
#include "kernels/search/step.h"
#include "kernels/stream.h"

namespace decoding {

// A step has a part for each search, all with the same heads, of which each has
// DecodeAttentionParams of its own; they may have the same scratch.
constexpr int kMostParts = 8;

// Row i * beams + j is beam j of sentence active[i], and its cache row is active[i].id * slots + j.
// Where k is given, each row's new key and value are first written to its own cell (pages.h) of the
// sentence's position; its history is the positions 0 .. position, the last one in its own cell.
//
// Where there is a rotary transformation, queries and new keys go through it first: on CUDA inside
// attention, so that a step has one dependent launch less, on the CPU in place. The rows of a
// sentence then have one position, and k directly follows q.
template <typename T, typename C = T>
struct DecodeAttentionParams {
  const StepState* state;
  T* q;                  // [sentences * beams, N, D], rows `stride` apart; so are k, v
  const T* k = nullptr;  // [sentences * beams, Nkv, D]; null without history (cross attention)
  const T* v = nullptr;  // null with k
  PagePool<C> pool;
  PageTable shared_pages = {};
  const int32_t* shared_lengths = nullptr;  // [B], positions; null: nothing is shared
  PageTable self_pages = {};
  const int32_t* cache_indirection = nullptr;  // [2, total_rows, target], the cache row whose cell
                                               // holds a position of a row
  const ActiveSentence* active;                // [sentences], of which active_count count
  T* y;                                        // [sentences * beams, N, D], contiguous
  float* partial = nullptr;                    // CUDA: [SplitScratch::queries, D + 2], scratch
  int32_t* split_counters = nullptr;  // CUDA: [SplitScratch::histories], 0 before and after
  int sentences;                      // at least active_count: a captured step is made for so many
  int beams, heads, kv_heads, head_dim, stride;
  int target = 0, total_rows = 0;
  int slots = 0;  // cache rows of a sentence, the lanes of its cells: beams, but where one row
                  // reads a prompt for all
  float scale;    // above 0
  AttentionBias bias = {};  // only with history; positions count shared keys, then history
  Rotary rotary = {};       // only with history
};

// Where sentences * heads leave a GPU idle, several blocks split a long history; deterministic
// streams split every long one. Each block leaves a partial result: of each query the weighted sum
// [D], the maximum and the sum of exponentials.
constexpr int kSplitRows = 256;      // rows of keys that are worth a block of their own
constexpr int kSplits = 8;           // most blocks that split a history
constexpr int kSplitCounters = 256;  // histories that may be split
constexpr int kPartials = 512;       // blocks that may leave partial results
constexpr int kPartQueries = 8;      // most queries of a block

// The size of the scratch.
struct SplitScratch {
  int64_t histories = kSplitCounters;                   // that may be split
  int64_t queries = int64_t{kPartials} * kPartQueries;  // whose partial results have room

  // Of a deterministic stream: all histories of `rows` rows, of `longest` positions at most. Blocks
  // have places for up to kPartQueries heads of a key, or for less than two queries a head.
  static SplitScratch for_all(int64_t rows, int heads, int kv_heads, int64_t longest) {
    const int64_t splits = std::clamp<int64_t>(longest / kSplitRows, 1, kSplits);
    const int64_t chunks = (heads / kv_heads + kPartQueries - 1) / kPartQueries;
    const int64_t places = std::max<int64_t>(2 * heads, kv_heads * chunks * kPartQueries);
    return {rows * heads, splits > 1 ? splits * rows * places : 0};
  }
};

template <typename T, typename C, cpu::Isa isa>
void decode_attention(cpu::Stream<isa>&, std::span<const DecodeAttentionParams<T, C>> parts);
template <typename T, typename C>
void decode_attention(cuda::Stream&, std::span<const DecodeAttentionParams<T, C>> parts);

// y = mean over the heads of softmax(scale * q k^T): how much a row attends to each position of its
// source, which decode attention weighs the values with. It is kept step by step; a step without a
// number (a prompt's) writes nothing.
template <typename T, typename C = T>
struct AttentionWeightsParams {
  const StepState* state;
  const T* q;        // [sentences * beams, N, D], rows `stride` elements apart
  PagePool<C> pool;  // its values are not read
  PageTable shared_pages;
  const int32_t* shared_lengths;  // [B], positions
  const ActiveSentence* active;   // [sentences], of which active_count count
  float* y;  // [steps, total_rows, longest], at [number - 1, cache row]; 0 after a source's end
  int sentences;  // at least active_count
  int beams, heads, kv_heads, head_dim, stride;
  int total_rows;
  int longest;  // at least the positions of any source
  float scale;
};

template <typename T, typename C, cpu::Isa isa>
void attention_weights(cpu::Stream<isa>&, const AttentionWeightsParams<T, C>&);
template <typename T, typename C>
void attention_weights(cuda::Stream&, const AttentionWeightsParams<T, C>&);

}  // namespace decoding
