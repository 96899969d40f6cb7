// Packed attention whose keys are split over the blocks of a cluster: each finds for a tile of
// queries what its share of the keys gives, and with M = max_i m_i
//
//   y = sum_i 2^(m_i - M) s_i / sum_i 2^(m_i - M) t_i
//
// adds up their sums s_i and totals t_i relative to maxima m_i (Dao et al. 2023, Flash-Decoding).
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/cuda/packed.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace decoding::cuda {

constexpr int kMostParts = 8;      // blocks of a cluster, everywhere
constexpr int kTilesOfAPart = 16;  // of keys, at least: to add up parts takes as long as some tiles
constexpr int kManyKeys = 2048;    // of a sentence, so many that they are worth splitting

// Blocks that share the keys of a tile, where there are so many tiles, and a multiprocessor runs so
// many blocks.
template <typename T, typename Keys>
int parts_of(const Stream& stream, const PackedAttentionParams<T, Keys>& p, int64_t tiles,
             int blocks, int tile_keys) {
  if (!stream.device().hopper() || stream.deterministic()) return 1;
  const int64_t room = blocks * stream.device().multiprocessors / tiles;
  const int64_t enough = most_keys(p) / (kTilesOfAPart * tile_keys);
  return static_cast<int>(std::clamp<int64_t>(std::min(room, enough), 1, kMostParts));
}

// The tiles of keys of a block. Where there are too few for all parts, the last have none.
struct KeySplit {
  int parts;       // that have some; one at least
  int first, end;  // of this block

  __device__ KeySplit(int first_tile, int end_tile, int part, int most) {
    const int tiles = end_tile - first_tile;
    parts = max(min(tiles / kTilesOfAPart, most), 1);
    const int each = (tiles + parts - 1) / parts;
    first = first_tile + part * each;
    end = min(first + each, end_tile);
  }
};

// What a block has found for its queries, before it is added to that of other blocks.
template <int queries, int dim>
struct Partial {
  float sums[queries][dim + 4];  // rows of neighbours lie in other banks
  float maxima[queries], totals[queries];
  float broken;  // 1 where some of it is not finite
};

// f(part) of those that there are; all are asked for before the first has come.
template <typename F>
__device__ __forceinline__ void for_parts(int parts, F&& f) {
#pragma unroll
  for (int part = 0; part < kMostParts; ++part) {
    if (part < parts) f(part);
  }
}

// What the sums of each part are multiplied by, for each query.
template <int queries>
using Factors = float[kMostParts][queries];

// threads: the block's that call this; scale: of scores, base 2.
template <int threads, int queries, int dim>
__device__ __forceinline__ void fill_factors(Factors<queries>& to, int rows,
                                             const Partial<queries, dim>& partial, int parts,
                                             float scale) {
  for (int row = threadIdx.x; row < rows; row += threads) {
    float factors[kMostParts], totals[kMostParts], top = kNoScore, total = 0.0f;
    for_parts(parts, [&](int i) {
      factors[i] = load_from_block(i, &partial.maxima[row]);
      totals[i] = load_from_block(i, &partial.totals[row]);
    });
    for_parts(parts, [&](int i) { top = fmaxf(top, factors[i]); });
    for_parts(parts, [&](int i) {
      factors[i] = power_of_two((factors[i] - reference(top)) * scale);
      total = fmaf(factors[i], totals[i], total);
    });
    const float normaliser = inverse(total);
    for_parts(parts, [&](int i) { to[i][row] = factors[i] * normaliser; });
  }
  __syncthreads();
}

// Adds up what the blocks of a cluster have found: each takes its share of the results.
template <int threads, int queries, int dim, typename T, typename Keys>
__device__ __forceinline__ void store_sum(const PackedAttentionParams<T, Keys>& p,
                                          const Partial<queries, dim>& partial,
                                          const Sentence& sentence, int parts, float scale) {
  __shared__ Factors<queries> factors;
  constexpr int kFours = dim / 4;
  const int first = sentence.part * threads + threadIdx.x;
  const int rows = min(queries, sentence.length - sentence.begin);
  fill_factors<threads>(factors, rows, partial, parts, scale);
  T* y = p.y + ((sentence.row + sentence.begin) * p.heads + sentence.head) * p.head_dim;
  for (int i = first; i < rows * kFours; i += parts * threads) {
    const int row = i / kFours, d = i % kFours * 4;
    if (d >= p.head_dim) continue;
    float4 found[kMostParts], sum{};
    for_parts(parts, [&](int part) {
      const auto* from = reinterpret_cast<const float4*>(&partial.sums[row][d]);
      found[part] = load_from_block(part, from);
    });
    for_parts(parts, [&](int part) {
      const float factor = factors[part][row];
      sum.x = fmaf(factor, found[part].x, sum.x), sum.y = fmaf(factor, found[part].y, sum.y);
      sum.z = fmaf(factor, found[part].z, sum.z), sum.w = fmaf(factor, found[part].w, sum.w);
    });
    uint2 packed;
    packed.x = pack<T>(make_float2(sum.x, sum.y));
    packed.y = pack<T>(make_float2(sum.z, sum.w));
    *reinterpret_cast<uint2*>(y + int64_t{row} * p.heads * p.head_dim + d) = packed;
  }
}

// Whether a block of the cluster has found what is not finite.
template <int queries, int dim>
__device__ __forceinline__ bool any_broken(const Partial<queries, dim>& partial, int parts) {
  float broken = 0.0f;
  for_parts(parts, [&](int part) { broken += load_from_block(part, &partial.broken); });
  return broken > 0.0f;
}

}  // namespace decoding::cuda
