// Query heads that share a key head, and with e4m3 all heads, on tensor cores: a block takes up to
// 8 queries, so that keys and values are read once for all of them. These are heads of one beam, or
// all heads of several beams, where these share a prompt. Tiles come as in beams.cuh, and go
// through products (mma.cuh), in which a query sees nothing of the rows that are another
// beam's. The newest position, which stems from the previous kernel, joins when the warps' parts
// are merged.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/attention/cuda/decode/decode.cuh"
#include "kernels/attention/cuda/decode/inputs.cuh"
#include "kernels/attention/cuda/decode/mma.cuh"
#include "kernels/attention/cuda/decode/newest.cuh"
#include "kernels/attention/cuda/decode/parts.cuh"
#include "kernels/attention/cuda/decode/ring.cuh"
#include "kernels/attention/cuda/decode/softmax.cuh"
#include "kernels/attention/cuda/decode/tile.cuh"
#include "kernels/cuda/launch.cuh"

namespace decoding::cuda {

template <typename T, typename C, typename S>
using TilesOf = std::conditional_t<kIsFloat8<C>, Float8Ring<T, S>, Ring<T, S, true>>;

// The queries of a block: the heads [head, head + heads) of each of `beams` beams from `beam` on,
// those of the first beam first.
template <int most_beams>
struct HeadWorkTile : WorkTile {
  static constexpr int kQueries = kPartQueries, kBeams = most_beams;
  int key_head, head, heads, beams;
  int first_head;  // of those that share the key head

  // Of a key head of a sentence, or of a row of it. With several beams a block has all heads.
  template <typename T, typename C>
  __host__ __device__ static int chunks_of(const DecodeAttentionParams<T, C>& p) {
    if (most_beams > 1) return (p.beams + most_beams - 1) / most_beams;
    return (p.heads / p.kv_heads + kQueries - 1) / kQueries;
  }

  template <bool with_bias, typename T, typename C>
  __device__ static HeadWorkTile of(const DecodeAttentionParams<T, C>& p, int y) {
    HeadWorkTile tile{WorkTile::of<with_bias, most_beams>(p, y, chunks_of(p))};
    const int group = p.heads / p.kv_heads;
    const int first = most_beams == 1 ? tile.chunk * kQueries : 0;
    tile.key_head = blockIdx.x;
    tile.first_head = tile.key_head * group;
    tile.head = tile.first_head + first;
    tile.heads = min(kQueries, group - first);
    tile.beams = min(most_beams, p.beams - tile.beam);
    return tile;
  }

  __device__ int count() const { return heads * beams; }  // of queries
  __device__ int beam_of(int query) const { return most_beams == 1 ? 0 : query / heads; }
  __device__ int head_of(int query) const { return head + query - beam_of(query) * heads; }
};

// The queries of a block, held by the groups of lanes of its first warp.
template <bool with_bias, typename T, typename C, typename S, int beams>
class Finish {
 public:
  // Asks for the queries and their newest positions.
  template <typename Inputs>
  __device__ __forceinline__ Finish(const DecodeAttentionParams<T, C>& p,
                                    const HeadWorkTile<beams>& tile, const Inputs& inputs)
      : p_(p), tile_(tile) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = query(j), in = min(i, tile.count() - 1);
      newest_[j] = Newest<T, S>(inputs, in, p.k != nullptr && tile.split == 0 && i < tile.count());
    }
  }

  // Merges what `count` warps have left in `parts` with the newest positions, and writes the
  // results of the block, or its part of them where a history is split, of which the last block
  // makes the whole.
  __device__ __forceinline__ void operator()(const float* parts, int count) const {
    const int dim = p_.head_dim, size = dim + 2;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = query(j), head = tile_.head_of(min(i, tile_.count() - 1));
      QuerySoftmax<T, S> state = newest_[j].template open<with_bias>(p_, head);
      if (i >= tile_.count()) continue;
      if (newest_[j].exists && head == tile_.first_head) {
        newest_[j].put(p_, tile_, tile_.key_head, tile_.beam + tile_.beam_of(i));
      }
      state.absorb(parts + i * size, count, kMost * size, dim);
      if (tile_.splits == 1) {
        write(state, i);
      } else {
        state.store(p_.partial + tile_.part(tile_.split, kMost, size) + i * size, dim);
      }
    }
    if (tile_.splits == 1 || !last_to_arrive(p_.split_counters + tile_.counter(), tile_.splits))
      return;
#pragma unroll 1
    for (int j = 0; j < kHeld; ++j) {
      const int i = query(j);
      if (i >= tile_.count()) continue;
      QuerySoftmax<T, S> state{};
      state.absorb(p_.partial + tile_.part(0, kMost, size) + i * size, tile_.splits,
                   tile_.part_stride(kMost, size), dim);
      write(state, i);
    }
  }

 private:
  static constexpr int kMost = kPartQueries, kGroups = kWarp / S::lanes, kHeld = kMost / kGroups;

  __device__ static int query(int j) { return j * kGroups + threadIdx.x % kWarp / S::lanes; }

  __device__ __forceinline__ void write(const QuerySoftmax<T, S>& state, int i) const {
    const int64_t at = tile_.row(p_, tile_.beam_of(i)) * p_.heads + tile_.head_of(i);
    state.result().store(p_.y + at * p_.head_dim, p_.head_dim);
  }

  const DecodeAttentionParams<T, C>& p_;
  const HeadWorkTile<beams>& tile_;
  Newest<T, S> newest_[kHeld];
};

template <bool with_bias, bool with_rope, typename T, typename C, typename S, int beams,
          typename Params>
__global__ void __launch_bounds__(kMaxWarps* kWarp, S::vectors == 1 ? 2 : 1)
    decode_heads_kernel(const __grid_constant__ Params params) {
  if constexpr (!kConverts<C>) return;
  extern __shared__ uint4 memory[];
  const BlockPart<T, C> part = part_of_block<T, C>(params);
  const DecodeAttentionParams<T, C>& p = part.params;
  const auto tile = HeadWorkTile<beams>::template of<with_bias>(p, part.y);
  if (!tile.exists) {
    wait_for_previous();  // else this kernel might be over, and its successor start, before that
    return;
  }
  KVRange<with_bias, T, C, S, beams> range(p, tile, tile.key_head, tile.beam, tile.beams);
  using Tiles = TilesOf<T, C, S>;
  const bool works = range.warp < range.active_warps;
  Tiles ring(memory);
#pragma unroll 1
  for (int i = 0; works && i < Tiles::kTiles; ++i) ring.close(range.request(ring, i));
  const Inputs<with_rope, T, C, S, HeadWorkTile<beams>> inputs(
      p, tile, memory + blockDim.x * (Tiles::kBytes / 16));
  wait_for_previous();
  let_next_start();

  inputs.rotate();
  if (!works) return;
  const int dim = p.head_dim, count = tile.count();
  SharedSoftmax<T, S, Tiles> softmax;
  const int query = min(softmax.query(), count - 1);
  const int beam = tile.beam_of(query), head = tile.head_of(query);
  softmax.load(count, dim, [&](int) { return inputs.query(query); });
  for (int i = 0; i < range.tiles; ++i) {
    ring.wait();
    __syncwarp();
    if constexpr (kIsFloat8<C>) ring.widen(i);
    softmax.attend(ring, i, p.scale, [&](int j, float score) {
      if constexpr (with_bias) score = apply_bias(p.bias, head, score, range.distance_of_row(i, j));
      return range.sees(beam, i, j) ? score : kNoScore;
    });
    __syncwarp();
    ring.close(range.request(ring, i + Tiles::kTiles));
  }
  float* parts =
      reinterpret_cast<float*>(memory) + blockDim.x * (Tiles::kBytes / 4) + inputs.bytes(dim) / 4;
  softmax.store(parts + range.warp * kPartQueries * (dim + 2), count, dim);
  if (range.warp > 0) return synchronize(range.active_warps);
  const Finish<with_bias, T, C, S, beams> finish(p, tile, inputs);
  synchronize(range.active_warps);
  finish(parts, range.active_warps);
}

template <bool with_bias, bool with_rope, typename T, typename C, typename S, int beams,
          typename Params>
void launch_heads(Stream& stream, const Params& params) {
  using Tile = HeadWorkTile<beams>;
  const DecodeAttentionParams<T, C>& p = first_part(params);
  const int y = beams == 1 ? rows_of(params) : p.sentences, chunks = Tile::chunks_of(p);
  const auto shared = [&](int warps) {  // bytes: the ring, rotated heads, and the parts
    return warps * (kWarp * TilesOf<T, C, S>::kBytes +
                    kPartQueries * (p.head_dim + 2) * sizeof(float)) +
           Inputs<with_rope, T, C, S, Tile>::bytes(p.head_dim);
  };
  const Plan plan(stream, int64_t{y} * p.kv_heads * chunks, longest_of(params, beams), 1, shared);
  launch(stream, decode_heads_kernel<with_bias, with_rope, T, C, S, beams, Params>,
         dim3(p.kv_heads, y, chunks * plan.splits), plan.warps * kWarp, shared(plan.warps), params);
}

template <bool with_bias, bool with_rope, typename T, typename C, typename S, typename Params>
void start_heads(Stream& stream, const Params& params) {
  if constexpr (!kSeveralParts<Params>) {
    const int group = params.heads / params.kv_heads;
    const bool by_row = !stream.deterministic() && shares_little(params);
    if (params.beams > 1 && group <= kPartQueries / 2 && !by_row) {
      return params.beams == 2 || group > kPartQueries / 4
                 ? launch_heads<with_bias, with_rope, T, C, S, 2>(stream, params)
                 : launch_heads<with_bias, with_rope, T, C, S, 4>(stream, params);
    }
  }
  launch_heads<with_bias, with_rope, T, C, S, 1>(stream, params);
}

// For 2-byte types and rows of whole pieces of 16 bytes, where heads tile keys, and for all e4m3.
template <bool with_bias, bool with_rope, typename T, typename C, typename Params>
void attend_for_heads(Stream& stream, const Params& params) {
  const int dim = first_part(params).head_dim;
  if (dim <= 64) {
    start_heads<with_bias, with_rope, T, C, DecodeConfig<8, 8, 1>>(stream, params);
  } else if (dim <= 128) {
    start_heads<with_bias, with_rope, T, C, DecodeConfig<8, 16, 1>>(stream, params);
  } else {
    start_heads<with_bias, with_rope, T, C, DecodeConfig<8, 16, kMaxHeadDim / 128>>(stream, params);
  }
}

}  // namespace decoding::cuda
