// FlashAttention-2's tiling (Dao 2023) on packed rows. A block has the queries of one sentence and
// head that its warps hold in registers; tiles of keys and values pass by in shared memory, the
// next one on its way while the present one is worked on. Scores stay in the registers where the
// product leaves them: rounded to T, they are the first operand of the product with the values.
// Where that makes too few blocks, as for a part of a long prompt, those of a cluster share the
// tiles of keys (packed_split.cuh).
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/cuda/attention.cuh"
#include "kernels/attention/cuda/packed.cuh"
#include "kernels/attention/cuda/packed_queries.cuh"
#include "kernels/attention/cuda/packed_split.cuh"
#include "kernels/attention/cuda/packed_tiles.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.cuh"

namespace decoding::cuda {

// The first query and key are those of the warp and of the tile.
template <bool with_bias, typename P, typename T, typename Params>
__device__ __forceinline__ void attend(Queries<P, T> (&queries)[P::kSquares], const RowsOf<P, T>& k,
                                       const RowsOf<P, T>& v, const Params& p, int head,
                                       const View<with_bias>& view, int query, int key) {
  float scores[P::kSquares][P::kKeys / 8][4] = {};
  P::multiply_keys(scores, queries, k);
#pragma unroll
  for (int s = 0; s < P::kSquares; ++s) {
    const int first = query + s * 16;
    float scale = p.scale;
    if constexpr (with_bias) {
      adjust(scores[s], first, key, [&](int i, int j, float score) {
        return apply_bias(p.bias, head, score * p.scale, i - j);
      });
      scale = 1.0f;
    }
    if (!view.sees_all(first, 16, key, P::kKeys)) {
      adjust(scores[s], first, key,
             [&](int i, int j, float score) { return view.sees(i, j) ? score : kNoScore; });
    }
    queries[s].weigh(scores[s], scale * kLog2e);
  }
  P::add_values(queries, scores, v);
}

// Weights as the first factor of a product, 16 keys of it.
template <typename T, int eights>
__device__ __forceinline__ void pack_weights(uint32_t (&to)[4], const float (&weights)[eights][4],
                                             int n) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* pair = &weights[2 * n + i / 2][i % 2 * 2];
    to[i] = pack<T>(make_float2(pair[0], pair[1]));
  }
}

// What a block has in shared memory.
template <typename P, typename T>
constexpr int kSharedBytes = std::max(kTileBytes<P, T>, int{sizeof(Partial<kQueries<P>, P::kDim>)});

// parts: blocks of a cluster, which share the keys of a tile of queries, if these are many.
template <bool with_bias, typename P, typename T, typename Keys>
__global__ void __launch_bounds__(kThreads<P>, P::kBlocks)
    packed_attention_kernel(const PackedAttentionParams<T, Keys> p, int parts) {
  constexpr int kKeys = P::kKeys, kPerWarp = 16 * P::kSquares;
  static_assert(kQueries<P> <= 2 * kKeys);
  extern __shared__ __align__(1024) char memory[];
  const Sentence sentence(p, kQueries<P>, parts);
  const auto source = sentence.keys_of(p);
  using C = NumberOf<decltype(source)>;
  if constexpr (!kConverts<C>) return;
  const int length = sentence.length, begin = sentence.begin;
  wait_for_previous();
  let_next_start();
  if (begin >= length) return;

  const View<with_bias> view(p, source.first_query + begin, kQueries<P>, source.length);
  const Share share(view.first / kKeys, (view.end + kKeys - 1) / kKeys, sentence.part, parts);
  if (sentence.part >= share.parts) return;
  const int first = share.first, end = share.end;
  const KeyTiles<P, T, C> tiles(memory);
  const RowsOf<P, T> own_rows = tiles.queries(first);
  request_rows<P, kQueries<P>>(own_rows, sentence.queries_of(p), StridedRows{p.stride}, begin,
                               length, p.head_dim);
  close_copies();
  first < end ? tiles.request(source, first, p.head_dim) : close_copies();
  wait_for_copies<1>();
  __syncthreads();
  const int own = threadIdx.x / kWarp * kPerWarp;  // the warp's first query in the block
  Queries<P, T> queries[P::kSquares];
#pragma unroll
  for (int s = 0; s < P::kSquares; ++s) queries[s].load(own_rows.from(own + s * 16));

  const int query = begin + own, position = source.first_query + query;  // of the warp's first
  const int before = own % P::kTogether;  // queries of other warps that go together with it
  for (int i = first; i < end; ++i) {
    wait_for_copies<0>();
    P::see_copies();
    __syncthreads();  // the tile has arrived, and all are done with the one before
    if (i + 1 < end) tiles.request(source, i + 1, p.head_dim);
    tiles.open(i);
    const bool hidden = p.causal && i * kKeys >= position - before + P::kTogether;
    if (query - before >= length || hidden) continue;
    attend(queries, tiles.keys(i), tiles.values(i), p, sentence.head, view, position, i * kKeys);
  }
  wait_for_copies<0>();  // of a sentence without keys
  bool finite = true;
#pragma unroll
  for (int s = 0; s < P::kSquares; ++s) finite &= queries[s].finite();
  const bool broken = __syncthreads_or(!finite) && view.differs();
  if (share.parts > 1) {
    using Found = Partial<kQueries<P>, P::kDim>;
    Found& found = *reinterpret_cast<Found*>(memory);
#pragma unroll
    for (int s = 0; s < P::kSquares; ++s) queries[s].store_partial(found, own + s * 16);
    if (threadIdx.x == 0) found.broken = broken;
    sync_cluster();
    if (any_broken(found, share.parts)) {
      attend_one_by_one<with_bias, kQueries<P>>(p, parts, share.parts);
    } else {
      store_sum(p, found, sentence, share.parts, with_bias ? kLog2e : p.scale * kLog2e);
    }
    return sync_cluster();  // the others have read what this block has found
  }
  if (broken) return attend_one_by_one<with_bias, kQueries<P>>(p, parts, 1);
  const RowsOf<P, T> results = tiles.rows.from(own);
#pragma unroll
  for (int s = 0; s < P::kSquares; ++s) queries[s].store(results.from(s * 16));
  __syncwarp();
  constexpr int kPieces = P::kDim / 8;
  for (int i = threadIdx.x % kWarp; i < kPerWarp * kPieces; i += kWarp) {
    const int row = i / kPieces, d = i % kPieces * 8;
    if (query + row >= length || d >= p.head_dim) continue;
    T* to = p.y + ((sentence.row + query + row) * p.heads + sentence.head) * p.head_dim + d;
    const char* from = memory + (results.at(row, d) - tiles.rows.address);
    Vector<T>::load(reinterpret_cast<const T*>(from)).store(to);
  }
}

template <bool with_bias, typename P, typename T, typename Keys>
void start(Stream& stream, const PackedAttentionParams<T, Keys>& p) {
  const int tiles = (p.longest + kQueries<P> - 1) / kQueries<P>;
  const int64_t blocks = static_cast<int64_t>(p.heads) * p.sentences * tiles;
  const int parts = parts_of(stream, p, blocks, P::kBlocks, P::kKeys);
  const dim3 grid(p.heads, p.sentences, tiles * parts), cluster(1, 1, parts);
  launch_clusters(stream, packed_attention_kernel<with_bias, P, T, Keys>, cluster, grid,
                  kThreads<P>, kSharedBytes<P, T>, p, parts);
}

}  // namespace decoding::cuda
