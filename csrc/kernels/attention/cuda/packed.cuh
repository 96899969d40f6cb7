// The three designs of packed attention: which is used, packed.cu decides.
#pragma once

#include <type_traits>
#include <utility>

#include "kernels/attention/cuda/attention.cuh"
#include "kernels/attention/cuda/float8.cuh"
#include "kernels/attention/packed.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/types.h"
#include "kernels/cuda/vector.cuh"

namespace decoding::cuda {

// Keys that a sentence may have.
template <typename T>
int64_t most_keys(const PackedAttentionParams<T>& p) {
  return p.longest;
}
template <typename T, typename C>
int64_t most_keys(const PackedAttentionParams<T, PagedKeys<C>>& p) {
  return int64_t{kPageSize} * p.keys.pages.longest;
}

// Heads, tiles of queries, `parts` blocks for each, and sentences. Where all heads' keys and values
// are too many for the cache, some of the heads come first, with all of their tiles.
template <typename T, typename Keys>
dim3 grid_of(const Stream& stream, const PackedAttentionParams<T, Keys>& p, int tiles, int parts) {
  const int64_t bytes = most_keys(p) * p.head_dim * 2 * sizeof(T);  // of a key head
  const int sharing = p.heads / p.kv_heads;
  int heads = p.heads;
  while (heads % (2 * sharing) == 0 && heads / sharing * bytes > stream.device().l2 / 3) heads /= 2;
  return dim3(heads, tiles * parts, p.sentences * (p.heads / heads));
}

// The sentence of a block in such a grid. The last tiles come first: where attention is causal,
// they take longest.
struct Sentence {
  int index, head;
  int64_t row;      // its first query
  int length;       // its queries
  int begin, part;  // of the block: its first query, and which of `parts` it is

  template <typename Params>
  __device__ Sentence(const Params& p, int queries, int parts)
      : index(blockIdx.z), head(blockIdx.x) {
    if (gridDim.x != p.heads) {  // divisions take long
      const int rounds = p.heads / gridDim.x;
      index = blockIdx.z / rounds;
      head += blockIdx.z % rounds * gridDim.x;
    }
    row = p.offsets[index];
    length = p.offsets[index + 1] - p.offsets[index];
    begin = (gridDim.y - 1 - blockIdx.y) / parts * queries;
    part = blockIdx.y % parts;
  }

  // The head's part of the sentence's first query, and of its keys and values.
  template <typename Params>
  __device__ auto queries_of(const Params& p) const {
    return p.q + row * p.stride + head * p.head_dim;
  }
  template <typename Params>
  __device__ auto keys_of(const Params& p) const {
    return p.keys.of(p, index, head / heads_of_a_key(p.heads, p.kv_heads));
  }
};

// The type of a key's numbers. Keys: KeysOfHead.
template <typename Keys>
using NumberOf = std::remove_cvref_t<decltype(*std::declval<Keys>().k)>;

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
  // Whether queries of one sentence may see different keys.
  __device__ __forceinline__ bool differs() const { return causal || (with_bias && window > 0); }
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

// Keeps `found` 0 as long as sums are finite: 0 times infinity or NaN is NaN.
__device__ __forceinline__ void probe(float& found, float sum) { found = fmaf(sum, 0.0f, found); }

// What a block does again where a sum of its queries was not finite. In a tile, keys that a query
// does not see have a weight of 0, which makes NaN of values that are not finite: a broken token
// would break earlier ones, whose keys and values may be others' too. To look for such values would
// cost every tile something. Here each query has a warp and meets no key that it does not see. The
// call takes no registers of the kernel's. threads: the first so many of a block call this;
// working: of the first so many of a tile's `parts` blocks.
template <bool with_bias, int queries, int threads, typename T, typename Keys>
__device__ __noinline__ void attend_one_by_one(const PackedAttentionParams<T, Keys> p, int parts,
                                               int working) {
  constexpr int kNumbers = kMaxHeadDim / kWarp;  // of a row, in a lane
  const Sentence sentence(p, queries, parts);
  const auto keys = sentence.keys_of(p);
  using C = NumberOf<decltype(keys)>;
  const View<with_bias> view(p, keys.first_query + sentence.begin, queries, keys.length);
  const int end = min(sentence.begin + queries, sentence.length), lane = threadIdx.x % kWarp;
  constexpr int kWarps = threads / kWarp;
  const int warp = sentence.part * kWarps + threadIdx.x / kWarp;
  for (int i = sentence.begin + warp; i < end; i += working * kWarps) {
    const T* q = sentence.queries_of(p) + StridedRows{p.stride}.offset(i);
    const int query = keys.first_query + i;  // position
    float sums[kNumbers] = {}, top = kNoScore, total = 0.0f;
    for (int key = view.first; key < view.end; ++key) {
      if (!view.sees(query, key)) continue;
      const auto row = keys.rows.offset(key);
      float score = 0.0f;
      for (int d = lane; d < p.head_dim; d += kWarp) {
        score = fmaf(to_float(q[d]), to_float(keys.k[row + d]), score);
      }
      score = warp_sum(score) * scale_of<C>(keys.k_scales, keys.rows, key) * p.scale;
      if constexpr (with_bias) score = apply_bias(p.bias, sentence.head, score, query - key);
      const float before = top;
      top = fmaxf(top, score);
      const float factor = exponential<float>(before - reference(top));
      const float weight = exponential<float>(score - reference(top));
      total = fmaf(total, factor, weight);
      const float v_scale = scale_of<C>(keys.v_scales, keys.rows, key);
#pragma unroll
      for (int e = 0; e < kNumbers; ++e) {
        const int d = lane + e * kWarp;
        if (d >= p.head_dim) continue;
        sums[e] = fmaf(weight, v_scale * to_float(keys.v[row + d]), sums[e] * factor);
      }
    }
    T* to = p.y + ((sentence.row + i) * p.heads + sentence.head) * p.head_dim;
#pragma unroll
    for (int e = 0; e < kNumbers; ++e) {
      const int d = lane + e * kWarp;
      if (d < p.head_dim) to[d] = from_float<T>(sums[e] * inverse(total));
    }
  }
}

// On tensor cores: whole pieces of 16 bytes in a head, and q, k, v and y aligned to them.
// with_bias: scores have a bias; a kernel without it has no branch for it.
template <bool with_bias, typename T, typename Keys>
void attend_with_mma(Stream&, const PackedAttentionParams<T, Keys>&);
// False where there is no such kernel for the GPU or the heads.
template <bool with_bias, typename T, typename Keys>
bool attend_with_wgmma(Stream&, const PackedAttentionParams<T, Keys>&);

}  // namespace decoding::cuda
