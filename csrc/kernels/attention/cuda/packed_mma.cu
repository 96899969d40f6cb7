// Packed attention by the tensor cores' instructions of a warp, with FlashAttention-2's tiling (Dao
// 2023). A block has the queries of one sentence and head that its warps hold in registers; tiles
// of keys and values pass by in shared memory, the next one on its way while the present one is
// worked on. Scores stay in the registers where the product leaves them: rounded to T, they are the
// first operand of the product with the values. Where that makes too few blocks, as for a part of a
// long prompt, those of a cluster share the tiles of keys (packed_split.cuh).
#include <algorithm>
#include <cstdint>

#include "kernels/attention/cuda/attention.cuh"
#include "kernels/attention/cuda/packed.cuh"
#include "kernels/attention/cuda/packed_results.cuh"
#include "kernels/attention/cuda/packed_softmax.cuh"
#include "kernels/attention/cuda/packed_split.cuh"
#include "kernels/attention/cuda/packed_tiles.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace decoding {
namespace cuda {
namespace {

template <int dim, int squares>
struct Mma {
  static constexpr int kDim = dim, kSquares = squares, kWarps = 4;
  static constexpr int kKeys = dim <= 128 ? 64 : 32;           // of a tile, as registers allow
  static constexpr int kBlocks = dim * squares <= 64 ? 3 : 2;  // that a multiprocessor runs
};

// The 16 queries of a product as its first factor.
template <int dim>
struct Square {
  uint32_t parts[dim / 16][4];

  template <typename Rows>
  __device__ __forceinline__ void load(const Rows& rows) {
#pragma unroll
    for (int d = 0; d < dim / 16; ++d) load_matrices(parts[d], by_rows(rows, 0, d * 16));
  }
};

template <typename P>
using Scores = float[P::kSquares][P::kKeys / 8][4];

template <typename T, typename P>
__device__ __forceinline__ void multiply_keys(Scores<P>& scores,
                                              const Square<P::kDim> (&queries)[P::kSquares],
                                              const RowsOf<P, T>& k) {
#pragma unroll
  for (int d = 0; d < P::kDim / 16; ++d) {
#pragma unroll
    for (int n = 0; n < P::kKeys / 16; ++n) {
      uint32_t b[4];
      load_matrices(b, by_columns(k, n * 16, d * 16));
#pragma unroll
      for (int s = 0; s < P::kSquares; ++s) {
        const auto& a = queries[s].parts[d];
        multiply_add<T>(scores[s][2 * n], a[0], a[1], a[2], a[3], b[0], b[1]);
        multiply_add<T>(scores[s][2 * n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }
}

template <typename T, typename P>
__device__ __forceinline__ void add_values(OnlineSoftmax<P::kDim> (&softmaxes)[P::kSquares],
                                           const Scores<P>& weights, const RowsOf<P, T>& v) {
#pragma unroll
  for (int n = 0; n < P::kKeys / 16; ++n) {
    uint32_t a[P::kSquares][4];
#pragma unroll
    for (int s = 0; s < P::kSquares; ++s) pack_weights<T>(a[s], weights[s], n);
#pragma unroll
    for (int d = 0; d < P::kDim / 16; ++d) {
      uint32_t b[4];
      load_transposed(b, by_rows(v, n * 16, d * 16));
#pragma unroll
      for (int s = 0; s < P::kSquares; ++s) {
        auto& sums = softmaxes[s].sums;
        multiply_add<T>(sums[2 * d], a[s][0], a[s][1], a[s][2], a[s][3], b[0], b[1]);
        multiply_add<T>(sums[2 * d + 1], a[s][0], a[s][1], a[s][2], a[s][3], b[2], b[3]);
      }
    }
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
  extern __shared__ __align__(16) char memory[];
  const Sentence sentence(p, kQueries<P>, parts);
  const auto source = sentence.keys_of(p);
  using C = NumberOf<decltype(source)>;
  if constexpr (!kConverts<C>) return;
  const int length = sentence.length, begin = sentence.begin;
  wait_for_previous();
  let_next_start();
  if (begin >= length) return;

  const View<with_bias> view(p, source.first_query + begin, kQueries<P>, source.length);
  const KeySplit split(view.first / kKeys, (view.end + kKeys - 1) / kKeys, sentence.part, parts);
  if (sentence.part >= split.parts) return;
  const int first = split.first, end = split.end;
  const KeyTiles<P, T, C> tiles(memory);
  const RowsOf<P, T> own_rows = tiles.queries(first);
  request_rows<kQueries<P>, P::kDim, kThreads<P>>(own_rows, threadIdx.x, sentence.queries_of(p),
                                                  StridedRows{p.stride}, begin, length, p.head_dim);
  close_copies();
  first < end ? tiles.request(source, first, p.head_dim) : close_copies();
  wait_for_copies<1>();
  __syncthreads();
  const int own = threadIdx.x / kWarp * kPerWarp;  // the warp's first query in the block
  Square<P::kDim> queries[P::kSquares];
#pragma unroll
  for (int s = 0; s < P::kSquares; ++s) queries[s].load(own_rows.from(own + s * 16));

  OnlineSoftmax<P::kDim> softmaxes[P::kSquares];
  const int query = begin + own, position = source.first_query + query;  // of the warp's first
  for (int i = first; i < end; ++i) {
    wait_for_copies<0>();
    __syncthreads();  // the tile has arrived, and all are done with the one before
    if (i + 1 < end) tiles.request(source, i + 1, p.head_dim);
    tiles.open(i);
    if (query >= length || (p.causal && i * kKeys >= position + kPerWarp)) continue;
    Scores<P> scores = {};
    multiply_keys<T, P>(scores, queries, tiles.keys(i));
#pragma unroll
    for (int s = 0; s < P::kSquares; ++s) {
      float factors[2];
      weigh<with_bias>(softmaxes[s], scores[s], p, sentence.head, view, position + s * 16,
                       i * kKeys, factors);
      softmaxes[s].rescale(factors);
    }
    add_values<T, P>(softmaxes, scores, tiles.values(i));
  }
  wait_for_copies<0>();  // of a sentence without keys
  store_results<with_bias, kQueries<P>, kThreads<P>>(p, softmaxes, own, sentence, view, split,
                                                     parts, memory, tiles.rows);
}

template <bool with_bias, typename P, typename T, typename Keys>
void start(Stream& stream, const PackedAttentionParams<T, Keys>& p) {
  const int tiles = (p.longest + kQueries<P> - 1) / kQueries<P>;
  const int64_t blocks = static_cast<int64_t>(p.heads) * p.sentences * tiles;
  const int parts = parts_of(stream, p, blocks, P::kBlocks, P::kKeys);
  launch_clusters(stream, packed_attention_kernel<with_bias, P, T, Keys>, dim3(1, parts),
                  grid_of(stream, p, tiles, parts), kThreads<P>, kSharedBytes<P, T>, p, parts);
}

}  // namespace

template <bool with_bias, typename T, typename Keys>
void attend_with_mma(Stream& stream, const PackedAttentionParams<T, Keys>& p) {
  // Twice the queries read keys and values half as often, where there are blocks enough, or keys to
  // split over them.
  const int64_t blocks = static_cast<int64_t>(p.heads) * p.sentences * ((p.longest + 127) / 128);
  const bool splits = stream.device().hopper() && p.longest > 64 && most_keys(p) >= kManyKeys;
  const bool many =
      !stream.deterministic() && (splits || blocks > 4 * stream.device().multiprocessors);
  if constexpr (!kIsFloat8<NumberOf<decltype(p.keys.of(p, 0, 0))>>) {  // of which there are less
    if (p.head_dim <= 32) {
      return many ? start<with_bias, Mma<32, 2>>(stream, p)
                  : start<with_bias, Mma<32, 1>>(stream, p);
    }
    if (p.head_dim > 64 && p.head_dim <= 96) return start<with_bias, Mma<96, 1>>(stream, p);
  }
  if (p.head_dim <= 64) {
    many ? start<with_bias, Mma<64, 2>>(stream, p) : start<with_bias, Mma<64, 1>>(stream, p);
  } else if (p.head_dim <= 128) {
    start<with_bias, Mma<128, 1>>(stream, p);
  } else {
    start<with_bias, Mma<kMaxHeadDim, 1>>(stream, p);
  }
}

#define INSTANTIATE(with_bias, T)                                                          \
  template void attend_with_mma<with_bias>(Stream&, const PackedAttentionParams<T>&);      \
  template void attend_with_mma<with_bias>(Stream&,                                        \
                                           const PackedAttentionParams<T, PagedKeys<T>>&); \
  template void attend_with_mma<with_bias>(Stream&,                                        \
                                           const PackedAttentionParams<T, PagedKeys<Float8>>&);
INSTANTIATE(false, half)
INSTANTIATE(false, bfloat16)
INSTANTIATE(true, half)
INSTANTIATE(true, bfloat16)

}  // namespace cuda
}  // namespace decoding
