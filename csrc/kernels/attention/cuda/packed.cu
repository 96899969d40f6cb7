// The plain design: every product a float32 multiplication and addition, for float, and for head
// sizes that do not suit tensor cores. A block takes a tile of queries of one sentence and head
// past tiles of keys and values in shared memory. Thread (x, y) holds the scores of queries
// 4y .. 4y + 3 with the keys x, x + 16, ..., and of the same queries' results the elements
// 4x .. 4x + 3 of every 64.
#include <algorithm>
#include <cstdint>

#include "kernels/attention/cuda/attention.cuh"
#include "kernels/attention/cuda/packed.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

namespace decoding {
namespace cuda {
namespace {

constexpr int kAcross = 16;  // threads that share a query

// dim: head_dim or the next of 64, 128, 256.
template <int queries_, int keys_, int dim_>
struct PlainTile {
  static constexpr int queries = queries_, keys = keys_, dim = dim_;
  static constexpr int threads = queries / 4 * kAcross;
  // Rows are 16 bytes longer than they must be, so that those of neighbours lie in other banks.
  float q[queries][dim + 4];
  float kv[keys][dim + 4];
  float weights[queries][keys + 4];
};

// Copies `count` rows of a sentence from `begin` on, zeros from `length` and from `dim` on.
template <typename T, typename Rows, int count, int width>
__device__ void fill(float (&to)[count][width], const T* from, const Rows& rows, int begin,
                     int length, int dim, float scale) {
  for (int i = threadIdx.x; i < count * (width - 4); i += blockDim.x) {
    const int row = i / (width - 4), d = i % (width - 4);
    const bool inside = begin + row < length && d < dim;
    to[row][d] = inside ? scale * to_float(from[rows.offset(begin + row) + d]) : 0.0f;
  }
}

__device__ __forceinline__ float4 load4(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}

// Added up by fours, scores keep half a digit more than in one long sum.
__device__ __forceinline__ float dot(float4 a, float4 b) {
  return fmaf(a.y, b.y, a.x * b.x) + fmaf(a.w, b.w, a.z * b.z);
}

template <bool with_bias, typename T, typename Tile, typename Keys>
__global__ void __launch_bounds__(Tile::threads)
    packed_attention_kernel(const PackedAttentionParams<T, Keys> p) {
  constexpr int kKeys = Tile::keys / kAcross, kParts = Tile::dim / 64;
  extern __shared__ __align__(16) char memory[];
  Tile& tile = *reinterpret_cast<Tile*>(memory);
  const Sentence sentence(p, Tile::queries, 1);
  const auto keys = sentence.keys_of(p);
  const int length = sentence.length, begin = sentence.begin;
  wait_for_previous();
  let_next_start();
  if (begin >= length) return;
  const int x = threadIdx.x % kAcross, y = threadIdx.x / kAcross * 4;
  const StridedRows rows{p.stride};
  fill(tile.q, sentence.queries_of(p), rows, begin, length, p.head_dim, p.scale);

  float4 sums[4][kParts] = {};
  float maxima[4] = {kNoScore, kNoScore, kNoScore, kNoScore}, totals[4] = {};
  const int first_query = keys.first_query + begin;  // position
  const View<with_bias> view(p, first_query, Tile::queries, keys.length);
  for (int first = view.first / Tile::keys * Tile::keys; first < view.end; first += Tile::keys) {
    __syncthreads();
    fill(tile.kv, keys.k, keys.rows, first, keys.length, p.head_dim, 1.0f);
    __syncthreads();
    float scores[4][kKeys] = {};
    for (int d = 0; d < p.head_dim; d += 4) {
      float4 columns[kKeys];
#pragma unroll
      for (int j = 0; j < kKeys; ++j) columns[j] = load4(&tile.kv[x + j * kAcross][d]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 query = load4(&tile.q[y + i][d]);
#pragma unroll
        for (int j = 0; j < kKeys; ++j) scores[i][j] += dot(query, columns[j]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float top = maxima[i];
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        const int query = first_query + y + i, key = first + x + j * kAcross;
        if constexpr (with_bias) {
          scores[i][j] = apply_bias(p.bias, sentence.head, scores[i][j], query - key);
        }
        if (!view.sees(query, key)) scores[i][j] = kNoScore;
        top = fmaxf(top, scores[i][j]);
      }
      top = warp_max<kAcross>(top);
      const float factor = exponential<float>(maxima[i] - reference(top));
      maxima[i] = top;
      totals[i] *= factor;
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        sums[i][c].x *= factor, sums[i][c].y *= factor;
        sums[i][c].z *= factor, sums[i][c].w *= factor;
      }
#pragma unroll
      for (int j = 0; j < kKeys; ++j) {
        const float weight = exponential<float>(scores[i][j] - reference(top));
        totals[i] += weight;
        tile.weights[y + i][x + j * kAcross] = weight;
      }
    }
    __syncthreads();
    fill(tile.kv, keys.v, keys.rows, first, keys.length, p.head_dim, 1.0f);
    __syncthreads();
    for (int key = 0; key < Tile::keys; key += 4) {
      float4 weights[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[i] = load4(&tile.weights[y + i][key]);
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        float4 values[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) values[j] = load4(&tile.kv[key + j][c * 64 + x * 4]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const auto add = [&](float weight, float4 value) {
            sums[i][c].x = fmaf(weight, value.x, sums[i][c].x);
            sums[i][c].y = fmaf(weight, value.y, sums[i][c].y);
            sums[i][c].z = fmaf(weight, value.z, sums[i][c].z);
            sums[i][c].w = fmaf(weight, value.w, sums[i][c].w);
          };
          add(weights[i].x, values[0]);
          add(weights[i].y, values[1]);
          add(weights[i].z, values[2]);
          add(weights[i].w, values[3]);
        }
      }
    }
  }
  float broken = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
      probe(broken, sums[i][c].x), probe(broken, sums[i][c].y);
      probe(broken, sums[i][c].z), probe(broken, sums[i][c].w);
    }
  }
  if (__syncthreads_or(broken != 0.0f) && view.differs()) {
    return attend_one_by_one<with_bias, Tile::queries, Tile::threads>(p, 1, 1);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float normaliser = inverse(warp_sum<kAcross>(totals[i]));
    if (begin + y + i >= length) continue;
    T* to = p.y + ((sentence.row + begin + y + i) * p.heads + sentence.head) * p.head_dim;
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
      const float parts[4] = {sums[i][c].x, sums[i][c].y, sums[i][c].z, sums[i][c].w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int d = c * 64 + x * 4 + e;
        if (d < p.head_dim) to[d] = from_float<T>(parts[e] * normaliser);
      }
    }
  }
}

template <bool with_bias, typename Tile, typename T, typename Keys>
void attend_plainly(Stream& stream, const PackedAttentionParams<T, Keys>& p) {
  const dim3 grid = grid_of(stream, p, (p.longest + Tile::queries - 1) / Tile::queries, 1);
  launch(stream, packed_attention_kernel<with_bias, T, Tile, Keys>, grid, Tile::threads,
         sizeof(Tile), p);
}

// Whether rows of whole pieces of 16 bytes begin at one.
template <typename T>
bool aligned(const PackedKeys<T>& keys) {
  return aligned16<T>(keys.k, 0) && aligned16<T>(keys.v, 0);
}
template <typename T>
bool aligned(const PagedKeys<T>& keys) {
  return aligned16<T>(keys.pool.k, 0) && aligned16<T>(keys.pool.v, 0);
}

template <bool with_bias, typename T>
void attend_to_keys(Stream& stream, const PackedAttentionParams<T, PagedKeys<Float8>>& p) {
  attend_with_mma<with_bias>(stream, p);
}

template <bool with_bias, typename T, typename Keys>
void attend_to_keys(Stream& stream, const PackedAttentionParams<T, Keys>& p) {
  if constexpr (sizeof(T) == 2) {
    const bool whole = p.head_dim % 8 == 0 && aligned16<T>(p.q, p.stride) && aligned16<T>(p.y, 0);
    if (whole && aligned(p.keys)) {
      if (!attend_with_wgmma<with_bias>(stream, p)) attend_with_mma<with_bias>(stream, p);
      return;
    }
  }
  if (p.head_dim <= 64) {
    attend_plainly<with_bias, PlainTile<64, 64, 64>>(stream, p);
  } else if (p.head_dim <= 128) {
    attend_plainly<with_bias, PlainTile<64, 64, 128>>(stream, p);
  } else {
    attend_plainly<with_bias, PlainTile<32, 32, kMaxHeadDim>>(stream, p);
  }
}

}  // namespace
}  // namespace cuda

template <typename T, typename Keys>
void packed_attention(cuda::Stream& stream, const PackedAttentionParams<T, Keys>& p) {
  if (p.sentences == 0 || p.longest == 0) return;
  p.bias.any() ? cuda::attend_to_keys<true>(stream, p) : cuda::attend_to_keys<false>(stream, p);
}

#define INSTANTIATE(T)                                                            \
  template void packed_attention(cuda::Stream&, const PackedAttentionParams<T>&); \
  template void packed_attention(cuda::Stream&, const PackedAttentionParams<T, PagedKeys<T>>&);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE
#define INSTANTIATE(T) \
  template void packed_attention(cuda::Stream&, const PackedAttentionParams<T, PagedKeys<Float8>>&);
DECODING_FOR_HALVES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
