// One block serves all beams of a (sentence, head), so that what they share is read once; or one of
// them, where all blocks then run at once: their histories are mostly their own. Groups of lanes
// divide the positions: each reads whole rows of keys and values, 16 bytes a lane, and keeps an
// online softmax for every beam. These are merged over groups, warps and, where blocks split a long
// history between them, over blocks (flash decoding, Dao et al. 2023).
//
// Rows come in tiles. A tile holds 4 shared positions, which every beam attends to, or 4 / beams
// positions of the histories with a row for each beam. The first tiles are requested before the
// previous kernel has ended, and each later one while its predecessor is worked on. The newest
// position stems from the previous kernel and opens the softmax.
//
// Where several beams share positions, in 2-byte types with head sizes up to 64, tensor cores take
// the shared tiles: a matrix of 16 positions for all beams at once (mma.cuh).
#pragma once

#include <algorithm>
#include <cstdint>

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

// The queries of a block: one head of `beams` beams of a sentence, from `beam` on.
template <int most>
struct BeamWorkTile : WorkTile {
  static constexpr int kQueries = most, kBeams = most;
  int head, key_head, beams;
  bool writes;  // the newest keys and values: the first of the heads that share them writes

  // Of a (sentence, head), or of a row of it.
  template <typename T>
  __host__ __device__ static int chunks_of(const DecodeAttentionParams<T>& p) {
    return most == 1 ? 1 : (p.beams + most - 1) / most;
  }

  template <bool with_bias, typename T>
  __device__ static BeamWorkTile of(const DecodeAttentionParams<T>& p, int y) {
    BeamWorkTile tile{WorkTile::of<with_bias, most>(p, y, chunks_of(p))};
    const int group = heads_of_a_key(p.heads, p.kv_heads);
    tile.head = blockIdx.x;
    tile.key_head = group == 1 ? tile.head : tile.head / group;
    tile.writes = tile.key_head * group == tile.head;
    tile.beams = min(most, p.beams - tile.beam);
    return tile;
  }

  __device__ int count() const { return beams; }  // of queries
  __device__ int beam_of(int query) const { return query; }
  __device__ int head_of(int) const { return head; }
};

// Opens the softmax of each beam in one group of lanes: with the newest position, whose key and
// value are also written to their cache row, and with the part (null: none) that stems from tensor
// cores.
template <bool with_bias, typename T, typename S, int beams, typename Inputs>
__device__ __forceinline__ void open(const DecodeAttentionParams<T>& p,
                                     const BeamWorkTile<beams>& tile, const Inputs& inputs,
                                     const Newest<T, S>& newest, const float* parts,
                                     QuerySoftmax<T, S> (&states)[beams]) {
  const int group = threadIdx.x / S::lanes, dim = p.head_dim;
  RowFragment<T, S> q[beams];
#pragma unroll
  for (int b = 0; b < beams; ++b) inputs.load_query(b, b < tile.beams, q[b]);
  QuerySoftmax<T, S> own = newest.template open<with_bias>(p, tile.head);
  const int beam = parts == nullptr ? group : group % static_cast<int>(kWarp / S::lanes);
  if (parts != nullptr && beam < tile.beams) {
    own.absorb(parts + beam * (dim + 2), dim);
  }
#pragma unroll
  for (int b = 0; b < beams; ++b) {
    const bool mine = b == beam;
    states[b].maximum = mine ? own.maximum : kNoScore;
    states[b].total = mine ? own.total : 0.0f;
#pragma unroll
    for (int e = 0; e < S::elements; ++e) {
      states[b].q[e] = q[b][e] * p.scale;
      states[b].sum[e] = mine ? own.sum[e] : 0.0f;
    }
  }
  if (newest.exists && tile.writes) newest.put(p, tile, tile.key_head, tile.beam + group);
}

// In one warp: writes the results of a block, or its part of them where a history is split, of
// which the last block makes the whole.
template <typename T, typename S, int beams>
__device__ __forceinline__ void close(const DecodeAttentionParams<T>& p,
                                      const BeamWorkTile<beams>& tile,
                                      const MergedGroups<T, S, beams>& merged,
                                      QuerySoftmax<T, S> (&states)[beams]) {
  const int dim = p.head_dim, size = dim + 2;
  const auto for_held = [&](auto&& call) {
#pragma unroll
    for (int j = 0; j < merged.kHeld; ++j) {
      const int b = merged.first + j;
      if (merged.speaks && b < tile.beams) call(states[j], b);
    }
  };
  if (tile.splits > 1) {
    for_held([&](QuerySoftmax<T, S>& state, int b) {
      state.store(p.partial + tile.part(tile.split, beams, size) + b * size, dim);
    });
    if (!last_to_arrive(p.split_counters + tile.counter(), tile.splits)) return;
    for_held([&](QuerySoftmax<T, S>& state, int b) {
      state = {};
      state.absorb(p.partial + tile.part(0, beams, size) + b * size, tile.splits,
                   tile.part_stride(beams, size), dim);
    });
  }
  for_held([&](QuerySoftmax<T, S>& state, int b) {
    state.result().store(p.y + (tile.row(p, b) * p.heads + tile.head) * dim, dim);
  });
}

// Every beam attends to all rows of a shared tile, or to each `beams`-th row of a self tile.
template <bool with_bias, bool shared, typename T, typename S, int beams>
__device__ __forceinline__ void attend(const Ring<T, S>& ring,
                                       const KVRange<with_bias, T, T, S, beams>& range, int head,
                                       int i, QuerySoftmax<T, S> (&states)[beams]) {
  constexpr int kStep = shared ? 1 : beams;
  float weights[beams][kTileRows];
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    const RowFragment<T, S> k = ring.read(i, 0, r);
#pragma unroll
    for (int b = r % kStep; b < beams; b += kStep) {
      float score = states[b].score(k);
      if constexpr (with_bias) {
        const int j = r / kStep * range.kGroups + range.group();
        score = apply_bias(range.p.bias, head, score, range.distance(i, j));
      }
      weights[b][r] = ring.valid(r) ? score : kNoScore;
    }
  }
#pragma unroll
  for (int b = 0; b < beams; ++b) states[b].weigh(weights[b], shared ? 0 : b, kStep);
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    const RowFragment<T, S> v = ring.read(i, 1, r);
#pragma unroll
    for (int b = r % kStep; b < beams; b += kStep) states[b].add(weights[b][r], v);
  }
}

template <bool with_bias, bool with_rope, typename T, typename S, int beams, typename Params>
__global__ void __launch_bounds__(kMaxWarps* kWarp, S::width > 1 && S::lanes < 32 ? 2 : 1)
    decode_beams_kernel(const __grid_constant__ Params params) {
  static_assert(kTileRows % beams == 0);
  constexpr bool kTogether = beams > 1 && S::lanes == 8;  // shared tiles go to the tensor cores
  extern __shared__ uint4 memory[];
  const BlockPart<T, T> part = part_of_block<T, T>(params);
  const DecodeAttentionParams<T>& p = part.params;
  const auto tile = BeamWorkTile<beams>::template of<with_bias>(p, part.y);
  if (!tile.exists) {
    wait_for_previous();  // else this kernel might be over, and its successor start, before that
    return;
  }
  KVRange<with_bias, T, T, S, beams> range(p, tile, tile.key_head, tile.beam, tile.beams);
  const int warp = range.warp, dim = p.head_dim, size = dim + 2;
  const bool works = warp < range.active_warps;
  Ring<T, S> ring(memory);
  constexpr int kAhead = Ring<T, S>::kTiles;
#pragma unroll 1
  for (int i = 0; works && i < kAhead; ++i) ring.close(range.request(ring, i));
  const Inputs<with_rope, T, T, S, BeamWorkTile<beams>> inputs(
      p, tile, memory + blockDim.x * (Ring<T, S>::kBytes / 16));
  wait_for_previous();
  let_next_start();

  inputs.rotate();
  if (!works) return;
  float* parts = reinterpret_cast<float*>(memory) + blockDim.x * (Ring<T, S>::kBytes / 4) +
                 inputs.bytes(dim) / 4;
  float* own_part = parts + warp * beams * size;    // [beams, size], the warp's
  const bool alone = !kTogether || p.k != nullptr;  // whether there are tiles for each beam alone
  const int group = threadIdx.x / S::lanes;  // its beam's newest position opens the softmax there
  const Newest<T, S> newest(inputs, group, p.k != nullptr && tile.split == 0 && group < tile.beams);
  QuerySoftmax<T, S> states[beams];
  const MergedGroups<T, S, beams> merged;
  int i = 0;
  if constexpr (kTogether) {
    SharedSoftmax<T, S> together;
    together.load(tile.beams, dim, [&](int b) { return inputs.query(b); });
    for (; i < range.shared_tiles; ++i) {
      ring.wait();
      __syncwarp();
      together.attend(ring, i, p.scale, [&](int j, float score) {
        if constexpr (with_bias) score = apply_bias(p.bias, tile.head, score, range.distance(i, j));
        return range.sees_shared(i, j) ? score : kNoScore;
      });
      __syncwarp();
      ring.close(range.request(ring, i + kAhead));
    }
    together.store(own_part, tile.beams, dim);
    __syncwarp();
  }
  if (alone) {
    open<with_bias>(p, tile, inputs, newest, kTogether ? own_part : nullptr, states);
    for (; i < range.tiles; ++i) {
      ring.wait();
      if (kTogether || beams == 1 || i >= range.shared_tiles) {
        attend<with_bias, false>(ring, range, tile.head, i, states);
      } else {
        attend<with_bias, true>(ring, range, tile.head, i, states);
      }
      ring.close(kTogether ? range.request_self(ring, i + kAhead)
                           : range.request(ring, i + kAhead));
    }
    merged.merge(states);
    __syncwarp();  // all lanes have read what open() found in `own_part`
    if (warp > 0 && merged.speaks) {
#pragma unroll
      for (int j = 0; j < merged.kHeld; ++j) {
        states[j].store(own_part + (merged.first + j) * size, dim);
      }
    }
  }
  synchronize(range.active_warps);
  if (warp > 0) return;
  const int own = alone ? 1 : 0;  // the first warp's part is in its states
#pragma unroll
  for (int j = 0; j < merged.kHeld; ++j) {
    if (!alone) states[j] = {};
    states[j].absorb(parts + (own * beams + merged.first + j) * size, range.active_warps - own,
                     beams * size, dim);
  }
  close(p, tile, merged, states);
}

template <bool with_bias, bool with_rope, typename T, typename S, int beams, typename Params>
void start(Stream& stream, const Params& params) {
  using Tile = BeamWorkTile<beams>;
  const DecodeAttentionParams<T>& p = first_part(params);
  const int y = beams == 1 ? rows_of(params) : p.sentences, chunks = Tile::chunks_of(p);
  // Each beam's newest position needs a group of lanes.
  constexpr int kLeast = std::max(1, beams * S::lanes / static_cast<int>(kWarp));
  const auto shared = [&](int warps) {  // bytes: the ring, rotated heads, and the parts
    return warps * (kWarp * Ring<T, S>::kBytes + beams * (p.head_dim + 2) * sizeof(float)) +
           Inputs<with_rope, T, T, S, Tile>::bytes(p.head_dim);
  };
  const Plan plan(stream, int64_t{y} * p.heads * chunks, longest_of(params, beams), kLeast, shared);
  launch(stream, decode_beams_kernel<with_bias, with_rope, T, S, beams, Params>,
         dim3(p.heads, y, chunks * plan.splits), plan.warps * kWarp, shared(plan.warps), params);
}

template <bool with_bias, bool with_rope, typename T, typename S, typename Params>
void attend_for_beams(Stream& stream, const Params& params) {
  // More beams would not fit into the registers of wide rows.
  if constexpr (S::vectors == 1 && !kSeveralParts<Params>) {
    const bool by_row = shares_little(params) && is_few(stream, rows_of(params) * params.heads);
    if (params.beams == 2 && !by_row) return start<with_bias, with_rope, T, S, 2>(stream, params);
    if (params.beams > 2 && !by_row) return start<with_bias, with_rope, T, S, 4>(stream, params);
  }
  start<with_bias, with_rope, T, S, 1>(stream, params);
}

}  // namespace decoding::cuda
