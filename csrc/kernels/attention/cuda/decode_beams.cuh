// One block serves all beams of a (sentence, head), so that what they share is read once; or one of
// them, where all blocks then run at once: their histories are mostly their own. Groups of lanes
// share out the positions: each reads whole rows of keys and values, 16 bytes a lane, and keeps an
// online softmax for every beam. These are merged over groups, warps and, where blocks split a long
// history between them, over blocks (flash decoding, Dao et al. 2023).
//
// Rows come in tiles. A tile holds 4 shared positions, which every beam looks at, or 4 / beams
// positions of the histories with a row for each beam. The first tiles are requested before the
// previous kernel has ended, and each later one while its predecessor is worked on. The newest
// position stems from the previous kernel and opens the softmax.
//
// Where several beams share positions, in 2-byte types with head sizes up to 64, tensor cores take
// the shared tiles: a matrix of 16 positions for all beams at once (decode_mma.cuh).
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/cuda/decode.cuh"
#include "kernels/attention/cuda/decode_inputs.cuh"
#include "kernels/attention/cuda/decode_mma.cuh"
#include "kernels/attention/cuda/decode_newest.cuh"
#include "kernels/attention/cuda/decode_tile.cuh"
#include "kernels/cuda/launch.cuh"

namespace decoding::cuda {

// What a block attends for: `beams` beams of a sentence from `beam` on, with one head: a query
// each.
template <int most>
struct BeamShare : Share {
  static constexpr int kQueries = most, kBeams = most;
  int head, key_head, beam, beams;
  bool writes;  // the newest keys and values: of the heads that share them the first does

  template <bool ruled, typename T>
  __device__ static BeamShare of(const DecodeAttentionParams<T>& p) {
    BeamShare share{Share::of<ruled>(p, (p.beams + most - 1) / most, most)};
    const int group = heads_of_a_key(p.heads, p.kv_heads);
    share.head = blockIdx.x;
    share.key_head = group == 1 ? share.head : share.head / group;
    share.writes = share.key_head * group == share.head;
    share.beam = share.chunk * most;
    share.beams = min(most, p.beams - share.beam);
    return share;
  }

  __device__ int count() const { return beams; }  // of queries
  __device__ int beam_of(int query) const { return query; }
  __device__ int head_of(int) const { return head; }

  // Of q, k, v and y; `b` counts from the block's first beam.
  template <typename T>
  __device__ int64_t row(const DecodeAttentionParams<T>& p, int b) const {
    return static_cast<int64_t>(blockIdx.y) * p.beams + beam + b;
  }
};

// Opens the softmax of each beam in one group of lanes: with the newest position, whose key and
// value are also put in their slot, and with the part (null: none) that stems from tensor cores.
template <bool ruled, typename T, typename S, int beams, typename Inputs>
__device__ __forceinline__ void open(const DecodeAttentionParams<T>& p,
                                     const BeamShare<beams>& share, const Inputs& inputs,
                                     const Newest<T, S>& newest, const float* parts,
                                     Beam<T, S> (&states)[beams]) {
  const int group = threadIdx.x / S::lanes, dim = p.head_dim;
  Row<T, S> q[beams];
#pragma unroll
  for (int b = 0; b < beams; ++b) inputs.load_query(b, b < share.beams, q[b]);
  Beam<T, S> own = newest.template open<ruled>(p, share.head);
  const int beam = parts == nullptr ? group : group % static_cast<int>(kWarp / S::lanes);
  if (parts != nullptr && beam < share.beams) {
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
  if (newest.exists && share.writes) newest.put(p, share, share.key_head, share.beam + group);
}

// In one warp: writes the results of a block, or its part of them where a history is split, of
// which the last block makes the whole.
template <typename T, typename S, int beams>
__device__ __forceinline__ void close(const DecodeAttentionParams<T>& p,
                                      const BeamShare<beams>& share,
                                      const Merged<T, S, beams>& merged,
                                      Beam<T, S> (&states)[beams]) {
  const int dim = p.head_dim, size = dim + 2;
  const auto for_held = [&](auto&& call) {
#pragma unroll
    for (int j = 0; j < merged.kHeld; ++j) {
      const int b = merged.first + j;
      if (merged.speaks && b < share.beams) call(states[j], b);
    }
  };
  if (share.splits > 1) {
    for_held([&](Beam<T, S>& state, int b) {
      state.store(p.partial + share.part(share.split, beams, size) + b * size, dim);
    });
    if (!last_to_arrive(p.tickets + share.ticket(), share.splits)) return;
    for_held([&](Beam<T, S>& state, int b) {
      state = {};
      state.absorb(p.partial + share.part(0, beams, size) + b * size, share.splits,
                   share.part_stride(beams, size), dim);
    });
  }
  for_held([&](Beam<T, S>& state, int b) {
    state.result().store(p.y + (share.row(p, b) * p.heads + share.head) * dim, dim);
  });
}

// Every beam attends to all rows of a shared tile, or to each `beams`-th row of an own one.
template <bool ruled, bool shared, typename T, typename S, int beams>
__device__ __forceinline__ void attend(const Ring<T, S>& ring, const History<T, S, beams>& history,
                                       int head, int i, Beam<T, S> (&states)[beams]) {
  constexpr int kStep = shared ? 1 : beams;
  float weights[beams][kTileRows];
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    const Row<T, S> k = ring.read(i, 0, r);
#pragma unroll
    for (int b = r % kStep; b < beams; b += kStep) {
      float score = states[b].score(k);
      if constexpr (ruled) {
        const int j = r / kStep * history.kGroups + history.group();
        score = follow(history.p.rules, head, score, history.distance(i, j));
      }
      weights[b][r] = ring.valid(r) ? score : kNoScore;
    }
  }
#pragma unroll
  for (int b = 0; b < beams; ++b) states[b].weigh(weights[b], shared ? 0 : b, kStep);
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    const Row<T, S> v = ring.read(i, 1, r);
#pragma unroll
    for (int b = r % kStep; b < beams; b += kStep) states[b].add(weights[b][r], v);
  }
}

template <bool ruled, bool turns, typename T, typename S, int beams>
__global__ void __launch_bounds__(kMaxWarps* kWarp, S::width > 1 && S::lanes < 32 ? 2 : 1)
    decode_beams_kernel(const DecodeAttentionParams<T> p) {
  static_assert(kTileRows % beams == 0);
  constexpr bool kTogether = beams > 1 && S::lanes == 8;  // shared tiles go to the tensor cores
  extern __shared__ uint4 memory[];
  const auto share = BeamShare<beams>::template of<ruled>(p);
  if (!share.exists) {
    wait_for_previous();  // else this kernel might be over, and its successor start, before that
    return;
  }
  History<T, S, beams> history(p, share, share.key_head, share.beam, share.beams);
  const int warp = history.warp, dim = p.head_dim, size = dim + 2;
  const bool works = warp < history.active;
  Ring<T, S> ring(memory);
  constexpr int kAhead = Ring<T, S>::kTiles;
#pragma unroll 1
  for (int i = 0; works && i < kAhead; ++i) ring.close(history.request(ring, i));
  const Inputs<turns, T, S, BeamShare<beams>> inputs(
      p, share, memory + blockDim.x * (Ring<T, S>::kBytes / 16));
  wait_for_previous();
  let_next_start();

  inputs.turn();
  if (!works) return;
  float* parts = reinterpret_cast<float*>(memory) + blockDim.x * (Ring<T, S>::kBytes / 4) +
                 inputs.bytes(dim) / 4;
  float* part = parts + warp * beams * size;        // [beams, size], the warp's
  const bool alone = !kTogether || p.k != nullptr;  // whether there are tiles for each beam alone
  const int group = threadIdx.x / S::lanes;  // its beam's newest position opens the softmax there
  const Newest<T, S> newest(inputs, group,
                            p.k != nullptr && share.split == 0 && group < share.beams);
  Beam<T, S> states[beams];
  const Merged<T, S, beams> merged;
  int i = 0;
  if constexpr (kTogether) {
    SharedSoftmax<T, S> together;
    together.load(share.beams, dim, [&](int b) { return inputs.query(b); });
    for (; i < history.shared_tiles; ++i) {
      ring.wait();
      __syncwarp();
      together.attend(ring, i, p.scale, [&](int j, float score) {
        if constexpr (ruled) score = follow(p.rules, share.head, score, history.distance(i, j));
        return history.shared_position(i, j) < history.shared_end ? score : kNoScore;
      });
      __syncwarp();
      ring.close(history.request(ring, i + kAhead));
    }
    together.store(part, share.beams, dim);
    __syncwarp();
  }
  if (alone) {
    open<ruled>(p, share, inputs, newest, kTogether ? part : nullptr, states);
    for (; i < history.tiles; ++i) {
      ring.wait();
      if (kTogether || beams == 1 || i >= history.shared_tiles) {
        attend<ruled, false>(ring, history, share.head, i, states);
      } else {
        attend<ruled, true>(ring, history, share.head, i, states);
      }
      ring.close(kTogether ? history.request_own(ring, i + kAhead)
                           : history.request(ring, i + kAhead));
    }
    merged.merge(states);
    __syncwarp();  // all lanes have read what open() found in `part`
    if (warp > 0 && merged.speaks) {
#pragma unroll
      for (int j = 0; j < merged.kHeld; ++j) {
        states[j].store(part + (merged.first + j) * size, dim);
      }
    }
  }
  synchronize(history.active);
  if (warp > 0) return;
  const int own = alone ? 1 : 0;  // the first warp's part is in its states
#pragma unroll
  for (int j = 0; j < merged.kHeld; ++j) {
    if (!alone) states[j] = {};
    states[j].absorb(parts + (own * beams + merged.first + j) * size, history.active - own,
                     beams * size, dim);
  }
  close(p, share, merged, states);
}

template <bool ruled, bool turns, typename T, typename S, int beams>
void start(Stream& stream, const DecodeAttentionParams<T>& p) {
  const int chunks = (p.beams + beams - 1) / beams;
  // Each beam's newest position needs a group of lanes.
  constexpr int kLeast = std::max(1, beams * S::lanes / static_cast<int>(kWarp));
  const auto shared = [&](int warps) {  // bytes: the ring, what has turned, and the parts
    return warps * (kWarp * Ring<T, S>::kBytes + beams * (p.head_dim + 2) * sizeof(float)) +
           Inputs<turns, T, S, BeamShare<beams>>::bytes(p.head_dim);
  };
  const Plan plan(stream, p, static_cast<int64_t>(p.sentences) * p.heads * chunks, beams, kLeast,
                  shared);
  launch(stream, decode_beams_kernel<ruled, turns, T, S, beams>,
         dim3(p.heads, p.sentences, chunks * plan.splits), plan.warps * kWarp, shared(plan.warps),
         p);
}

template <bool ruled, bool turns, typename T, typename S>
void attend_for_beams(Stream& stream, const DecodeAttentionParams<T>& p) {
  const int64_t blocks = static_cast<int64_t>(p.sentences) * p.heads * p.beams;  // a beam each
  const bool few = p.k != nullptr && p.shared_capacity <= kLittleShared * p.sentences &&
                   blocks <= kWarpsPerMultiprocessor * stream.device().multiprocessors;
  if (S::vectors > 1 || p.beams == 1 || few) {  // more would not fit into the registers
    start<ruled, turns, T, S, 1>(stream, p);
  } else if constexpr (S::vectors == 1) {
    p.beams == 2 ? start<ruled, turns, T, S, 2>(stream, p)
                 : start<ruled, turns, T, S, 4>(stream, p);
  }
}

}  // namespace decoding::cuda
