// FlashAttention-2's tiling (Dao 2023) on packed rows. A block has 4 warps and the queries of one
// sentence and head that these hold in registers, 16 or 32 each; tiles of keys and values pass by
// in shared memory, the next one on its way while the present one is worked on. Scores stay in the
// registers where the product leaves them: rounded to T, they are the first operand of the product
// with the values. Where that makes too few blocks, as for a part of a long prompt, those of a
// cluster share the tiles of keys (packed_split.cuh).
//
// A quad of lanes holds a row: lane t of it the columns 2t and 2t + 1 of every 8. Half h of a
// product's registers is row g + 8h of its 16 (tensor_core.cuh).
#include <algorithm>
#include <cstdint>

#include "kernels/attention/cuda/attention.cuh"
#include "kernels/attention/cuda/packed.cuh"
#include "kernels/attention/cuda/packed_split.cuh"
#include "kernels/attention/cuda/packed_tiles.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/cuda/vector.cuh"

namespace decoding {
namespace cuda {
namespace {

// The 16 queries of one product, and their softmax so far.
template <typename T, int dim>
struct Queries {
  static constexpr int kKeys = kTileKeys<dim>;
  uint32_t q[dim / 16][4];
  float sums[dim / 8][4] = {};
  float maxima[2] = {kNoScore, kNoScore}, totals[2] = {};  // of rows g, g + 8

  __device__ __forceinline__ void load(SharedRows<T, dim> rows) {
#pragma unroll
    for (int d = 0; d < dim / 16; ++d) load_matrices(q[d], rows.by_rows(0, d * 16));
  }

  // Turns scores into weights, for which everything so far is rescaled.
  __device__ __forceinline__ void weigh(float (&scores)[kKeys / 8][4], float scale) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = maxima[h];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        top = fmaxf(top, fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
      }
      top = warp_max<4>(top);
      const float subtrahend = reference(top) * scale;
      // 1 to the bit where the maximum stays: tiles of which a row sees nothing leave it as it is.
      const float factor = power_of_two((maxima[h] - reference(top)) * scale);
      maxima[h] = top;
      totals[h] *= factor;
#pragma unroll
      for (int d = 0; d < dim / 8; ++d) sums[d][2 * h] *= factor, sums[d][2 * h + 1] *= factor;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int c = 2 * h; c < 2 * h + 2; ++c) {
          scores[n][c] = power_of_two(fmaf(scores[n][c], scale, -subtrahend));
          totals[h] += scores[n][c];
        }
      }
    }
  }

  __device__ __forceinline__ bool finite() const {
    float broken = 0.0f;
#pragma unroll
    for (int d = 0; d < dim / 8; ++d) {
#pragma unroll
      for (int c = 0; c < 4; ++c) probe(broken, sums[d][c]);
    }
    return broken == 0.0f;
  }

  // Puts what has been found so far into the rows from `row` on.
  template <int queries>
  __device__ __forceinline__ void store_partial(Partial<queries, dim>& to, int row) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = row + lane / 4 + 8 * h;
      const float total = warp_sum<4>(totals[h]);
      if (lane % 4 == 0) to.maxima[at] = maxima[h], to.totals[at] = total;
#pragma unroll
      for (int d = 0; d < dim / 8; ++d) {
        *reinterpret_cast<float2*>(&to.sums[at][d * 8 + lane % 4 * 2]) =
            make_float2(sums[d][2 * h], sums[d][2 * h + 1]);
      }
    }
  }

  // Puts the results where the queries came from, as T.
  __device__ __forceinline__ void store(SharedRows<T, dim> rows) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float normaliser = inverse(warp_sum<4>(totals[h]));
#pragma unroll
      for (int d = 0; d < dim / 8; ++d) {
        const uint32_t pair =
            pack<T>(make_float2(sums[d][2 * h] * normaliser, sums[d][2 * h + 1] * normaliser));
        asm volatile(
            "st.shared.u32 [%0], %1;" ::"r"(rows.at(lane / 4 + 8 * h, d * 8 + lane % 4 * 2)),
            "r"(pair)
            : "memory");
      }
    }
  }
};

// See(query, key, score): the score that the softmax reads. The first query and key are those of
// the square and of the tile.
template <int eights, typename See>
__device__ __forceinline__ void adjust(float (&scores)[eights][4], int query, int key, See&& see) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int n = 0; n < eights; ++n) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int row = lane / 4 + c / 2 * 8, column = n * 8 + lane % 4 * 2 + c % 2;
      scores[n][c] = see(query + row, key + column, scores[n][c]);
    }
  }
}

// squares: of 16 queries, per warp.
template <bool with_bias, typename T, int dim, int squares, typename Params>
__device__ __forceinline__ void attend(Queries<T, dim> (&queries)[squares], SharedRows<T, dim> k,
                                       SharedRows<T, dim> v, const Params& p, int head,
                                       const View<with_bias>& view, int query, int key) {
  constexpr int kKeys = kTileKeys<dim>;
  float scores[squares][kKeys / 8][4] = {};
#pragma unroll
  for (int d = 0; d < dim / 16; ++d) {
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      uint32_t b[4];
      load_matrices(b, k.by_columns(n * 16, d * 16));
#pragma unroll
      for (int s = 0; s < squares; ++s) {
        const auto& a = queries[s].q[d];
        multiply_add<T>(scores[s][2 * n], a[0], a[1], a[2], a[3], b[0], b[1]);
        multiply_add<T>(scores[s][2 * n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }
#pragma unroll
  for (int s = 0; s < squares; ++s) {
    const int first = query + s * 16;
    float scale = p.scale;
    if constexpr (with_bias) {
      adjust(scores[s], first, key, [&](int i, int j, float score) {
        return apply_bias(p.bias, head, score * p.scale, i - j);
      });
      scale = 1.0f;
    }
    if (!view.sees_all(first, 16, key, kKeys)) {
      adjust(scores[s], first, key,
             [&](int i, int j, float score) { return view.sees(i, j) ? score : kNoScore; });
    }
    queries[s].weigh(scores[s], scale * kLog2e);
  }
#pragma unroll
  for (int n = 0; n < kKeys / 16; ++n) {
    uint32_t a[squares][4];
#pragma unroll
    for (int s = 0; s < squares; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &scores[s][2 * n + i / 2][i % 2 * 2];
        a[s][i] = pack<T>(make_float2(pair[0], pair[1]));
      }
    }
#pragma unroll
    for (int d = 0; d < dim / 16; ++d) {
      uint32_t b[4];
      load_transposed(b, v.by_rows(n * 16, d * 16));
#pragma unroll
      for (int s = 0; s < squares; ++s) {
        multiply_add<T>(queries[s].sums[2 * d], a[s][0], a[s][1], a[s][2], a[s][3], b[0], b[1]);
        multiply_add<T>(queries[s].sums[2 * d + 1], a[s][0], a[s][1], a[s][2], a[s][3], b[2], b[3]);
      }
    }
  }
}

// parts: blocks of a cluster, which share the keys of a tile of queries, if these are many.
template <bool with_bias, int dim, int squares, typename T, typename Keys>
__global__ void __launch_bounds__(kThreads)
    packed_attention_kernel(const PackedAttentionParams<T, Keys> p, int parts) {
  constexpr int kKeys = kTileKeys<dim>;
  constexpr int kPerWarp = 16 * squares, kQueries = kPerWarp * kWarps;
  static_assert(kQueries <= 2 * kKeys);
  extern __shared__ __align__(16) char memory[];
  const Sentence sentence(p, kQueries, parts);
  const auto source = sentence.keys_of(p);
  using C = NumberOf<decltype(source)>;
  if constexpr (!kConverts<C>) return;
  const int length = sentence.length, begin = sentence.begin;
  wait_for_previous();
  let_next_start();
  if (begin >= length) return;

  const View<with_bias> view(p, source.first_query + begin, kQueries, source.length);
  const Share share(view.first / kKeys, (view.end + kKeys - 1) / kKeys, sentence.part, parts);
  if (sentence.part >= share.parts) return;
  const int first = share.first, end = share.end;  // tiles
  const KeyTiles<T, dim, C> tiles(memory);
  const SharedRows<T, dim> own_rows = tiles.queries(first);
  own_rows.template request<kQueries>(sentence.queries_of(p), StridedRows{p.stride}, begin, length,
                                      p.head_dim);
  close_copies();
  first < end ? tiles.request(source, first, p.head_dim) : close_copies();
  wait_for_copies<1>();
  __syncthreads();
  const int own = threadIdx.x / kWarp * kPerWarp;  // the warp's first query in the block
  Queries<T, dim> queries[squares];
#pragma unroll
  for (int s = 0; s < squares; ++s) queries[s].load(own_rows.from(own + s * 16));

  const int query = begin + own, position = source.first_query + query;  // of the warp's first
  for (int i = first; i < end; ++i) {
    wait_for_copies<0>();
    __syncthreads();  // the tile has arrived, and all are done with the one before
    if (i + 1 < end) tiles.request(source, i + 1, p.head_dim);
    tiles.open(i);
    const bool idle = query >= length || (p.causal && i * kKeys >= position + kPerWarp);
    if (idle) continue;
    attend(queries, tiles.keys(i), tiles.values(i), p, sentence.head, view, position, i * kKeys);
  }
  wait_for_copies<0>();  // of a sentence without keys
  bool finite = true;
#pragma unroll
  for (int s = 0; s < squares; ++s) finite &= queries[s].finite();
  const bool broken = __syncthreads_or(!finite) && view.differs();
  if (share.parts > 1) {
    using Found = Partial<kQueries, dim>;
    static_assert(sizeof(Found) <= kShared<T, dim>);
    Found& found = *reinterpret_cast<Found*>(memory);
#pragma unroll
    for (int s = 0; s < squares; ++s) queries[s].store_partial(found, own + s * 16);
    if (threadIdx.x == 0) found.broken = broken;
    sync_cluster();
    if (any_broken(found, share.parts)) {
      attend_one_by_one<with_bias, kQueries>(p, parts, share.parts);
    } else {
      store_sum(p, found, sentence, share.parts, with_bias ? kLog2e : p.scale * kLog2e);
    }
    return sync_cluster();  // the others have read what this block has found
  }
  if (broken) return attend_one_by_one<with_bias, kQueries>(p, parts, 1);
  const SharedRows<T, dim> results = tiles.rows.from(own);
#pragma unroll
  for (int s = 0; s < squares; ++s) queries[s].store(results.from(s * 16));
  __syncwarp();
  constexpr int kPieces = dim / 8;
  for (int i = threadIdx.x % kWarp; i < kPerWarp * kPieces; i += kWarp) {
    const int row = i / kPieces, d = i % kPieces * 8;
    if (query + row >= length || d >= p.head_dim) continue;
    T* to = p.y + ((sentence.row + query + row) * p.heads + sentence.head) * p.head_dim + d;
    const T* from =
        reinterpret_cast<const T*>(memory) + (own + row) * SharedRows<T, dim>::stride + d;
    Vector<T>::load(from).store(to);
  }
}

template <bool with_bias, int dim, int squares, typename T, typename Keys>
void start(Stream& stream, const PackedAttentionParams<T, Keys>& p) {
  constexpr int kQueries = 16 * squares * kWarps;
  const int tiles = (p.longest + kQueries - 1) / kQueries;
  const int64_t blocks = static_cast<int64_t>(p.heads) * p.sentences * tiles;
  const int parts = parts_of(stream, p, blocks, kBlocks<dim * squares>, kTileKeys<dim>);
  const dim3 grid(p.heads, p.sentences, tiles * parts), cluster(1, 1, parts);
  launch_clusters(stream, packed_attention_kernel<with_bias, dim, squares, T, Keys>, cluster, grid,
                  kThreads, kShared<T, dim>, p, parts);
}

}  // namespace

template <bool with_bias, typename T, typename Keys>
void attend_with_tensor_cores(Stream& stream, const PackedAttentionParams<T, Keys>& p) {
  // Twice the queries read keys and values half as often, where there are blocks enough, or keys to
  // split over them.
  const int64_t blocks = static_cast<int64_t>(p.heads) * p.sentences * ((p.longest + 127) / 128);
  const bool splits = stream.device().hopper() && p.longest > 64 && most_keys(p) >= kManyKeys;
  const bool many =
      !stream.deterministic() && (splits || blocks > 4 * stream.device().multiprocessors);
  if constexpr (!kIsFloat8<NumberOf<decltype(p.keys.of(p, 0, 0))>>) {  // of which there are less
    if (p.head_dim <= 32) {
      return many ? start<with_bias, 32, 2>(stream, p) : start<with_bias, 32, 1>(stream, p);
    }
    if (p.head_dim > 64 && p.head_dim <= 96) return start<with_bias, 96, 1>(stream, p);
  }
  if (p.head_dim <= 64) {
    many ? start<with_bias, 64, 2>(stream, p) : start<with_bias, 64, 1>(stream, p);
  } else if (p.head_dim <= 128) {
    start<with_bias, 128, 1>(stream, p);
  } else {
    start<with_bias, kMaxHeadDim, 1>(stream, p);
  }
}

#define INSTANTIATE(with_bias, T)                                                              \
  template void attend_with_tensor_cores<with_bias>(Stream&, const PackedAttentionParams<T>&); \
  template void attend_with_tensor_cores<with_bias>(                                           \
      Stream&, const PackedAttentionParams<T, PagedKeys<T>>&);                                 \
  template void attend_with_tensor_cores<with_bias>(                                           \
      Stream&, const PackedAttentionParams<T, PagedKeys<Float8>>&);
INSTANTIATE(false, half)
INSTANTIATE(false, bfloat16)
INSTANTIATE(true, half)
INSTANTIATE(true, bfloat16)

}  // namespace cuda
}  // namespace decoding
