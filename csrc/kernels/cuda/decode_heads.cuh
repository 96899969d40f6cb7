// Query heads that share a key head, on tensor cores: a block takes up to 8 of them for one beam,
// so that their keys and values are read once. Tiles come as in decode_beams.cuh; all of them are
// the same for all queries, and go through products (decode_attention_mma.cuh). The newest
// position, which stems from the previous kernel, joins when the warps' parts are merged.
#pragma once

#include <cstdint>

#include "kernels/cuda/decode_attention.cuh"
#include "kernels/cuda/decode_attention_mma.cuh"
#include "kernels/cuda/decode_share.cuh"
#include "kernels/cuda/launch.cuh"

namespace decoding::cuda {

// What a block attends for: `count` heads from `head` on, of a beam.
struct HeadShare : Share {
  static constexpr int kMost = kPartQueries;  // heads
  int head, key_head, beam, count;
  bool writes;  // the newest key and value: of the blocks that read them the first does
  int64_t row;  // of q, k, v and y

  __host__ __device__ static int chunks_of(int group) { return (group + kMost - 1) / kMost; }

  template <bool ruled, typename T>
  __device__ static HeadShare of(const DecodeAttentionParams<T>& p) {
    const int group = heads_of_a_key(p.heads, p.kv_heads), chunks = chunks_of(group);
    HeadShare share{Share::of<ruled>(p, p.beams * chunks, 1)};
    const int first = share.chunk % chunks * kMost;
    share.beam = share.chunk / chunks;
    share.key_head = blockIdx.x;
    share.head = share.key_head * group + first;
    share.count = min(kMost, group - first);
    share.writes = p.k != nullptr && share.split == 0 && first == 0;
    share.row = static_cast<int64_t>(blockIdx.y) * p.beams + share.beam;
    return share;
  }
};

// The newest position, in every group of lanes.
template <typename T, typename S>
struct NewestOfBeam {
  Row<T, S> k, v;
  bool exists;

  __device__ __forceinline__ NewestOfBeam(const DecodeAttentionParams<T>& p,
                                          const HeadShare& share) {
    const int64_t at = share.row * p.stride + share.key_head * p.head_dim;
    exists = p.k != nullptr && share.split == 0;
    k.load(p.k + at, p.head_dim, exists);
    v.load(p.v + at, p.head_dim, exists);
  }

  __device__ __forceinline__ void put(const DecodeAttentionParams<T>& p,
                                      const HeadShare& share) const {
    const int64_t to = share.newest(p, share.key_head, share.beam);
    k.store(p.self_k + to, p.head_dim);
    v.store(p.self_v + to, p.head_dim);
  }

  // What query `i` of the block has attended to when it has seen nothing else. All lanes of a warp
  // come here.
  template <bool ruled>
  __device__ __forceinline__ Beam<T, S> open(const DecodeAttentionParams<T>& p,
                                             const HeadShare& share, int i) const {
    Row<T, S> q;
    q.load(p.q + share.row * p.stride + (share.head + i) * p.head_dim, p.head_dim,
           exists && i < share.count);
    Beam<T, S> state;
#pragma unroll
    for (int e = 0; e < S::elements; ++e) state.q[e] = q[e] * p.scale, state.sum[e] = v[e];
    float score = state.score(k);
    if constexpr (ruled) score = follow(p.rules, share.head + min(i, share.count - 1), score, 0);
    state.maximum = exists ? score : kNoScore;
    state.total = exists ? 1.0f : 0.0f;
    return state;
  }
};

// In one warp: merges what `count` warps have left in `parts` with the newest position, and writes
// the results of a block, or its part of them where a history is split, of which the last block
// makes the whole.
template <bool ruled, typename T, typename S>
__device__ __forceinline__ void finish(const DecodeAttentionParams<T>& p, const HeadShare& share,
                                       const NewestOfBeam<T, S>& newest, const float* parts,
                                       int count) {
  constexpr int kMost = HeadShare::kMost, kGroups = kWarp / S::lanes;
  const int dim = p.head_dim, size = dim + 2, group = threadIdx.x / S::lanes;
  const auto write = [&](const Beam<T, S>& state, int i) {
    state.result().store(p.y + (share.row * p.heads + share.head + i) * dim, dim);
  };
#pragma unroll 1
  for (int i = group; i < kMost; i += kGroups) {
    Beam<T, S> state = newest.template open<ruled>(p, share, i);
    if (i >= share.count) continue;
    state.absorb(parts + i * size, count, kMost * size, dim);
    if (share.splits == 1) {
      write(state, i);
    } else {
      state.store(p.partial + share.part(share.split, kMost, size) + i * size, dim);
    }
  }
  if (share.splits == 1 || !last_to_arrive(p.tickets + share.ticket(), share.splits)) return;
#pragma unroll 1
  for (int i = group; i < share.count; i += kGroups) {
    Beam<T, S> state{};
    state.absorb(p.partial + share.part(0, kMost, size) + i * size, share.splits,
                 share.part_stride(kMost, size), dim);
    write(state, i);
  }
}

template <bool ruled, typename T, typename S>
__global__ void __launch_bounds__(kMaxWarps* kWarp, 2)
    decode_heads_kernel(const DecodeAttentionParams<T> p) {
  extern __shared__ uint4 memory[];
  const auto share = HeadShare::of<ruled>(p);
  if (!share.exists) {
    wait_for_previous();  // else this kernel might be over, and its successor start, before that
    return;
  }
  History<T, S, 1> history(p, share, share.key_head, share.beam, 1);
  if (history.warp >= history.active) {
    wait_for_previous();
    return;
  }
  using Tiles = SharedSoftmax<T, S>::Tiles;
  Tiles ring(memory);
#pragma unroll 1
  for (int i = 0; i < Tiles::kTiles; ++i) ring.close(history.request(ring, i));
  wait_for_previous();
  let_next_start();

  const int dim = p.head_dim;
  SharedSoftmax<T, S> softmax;
  softmax.load(p.q + share.row * p.stride + share.head * dim, dim, share.count, dim);
  for (int i = 0; i < history.tiles; ++i) {
    ring.wait();
    __syncwarp();
    softmax.attend(ring, i, p.scale, [&](int query, int j, float score) {
      if constexpr (ruled) {
        score = follow(p.rules, share.head + min(query, share.count - 1), score,
                       history.distance(i, j));
      }
      return history.exists(i, j) ? score : kNoScore;
    });
    __syncwarp();
    ring.close(history.request(ring, i + Tiles::kTiles));
  }
  float* parts = reinterpret_cast<float*>(memory) + blockDim.x * (Tiles::kBytes / 4);
  softmax.store(parts + history.warp * HeadShare::kMost * (dim + 2), share.count, dim);
  const NewestOfBeam<T, S> newest(p, share);
  synchronize(history.active);
  if (history.warp > 0) return;
  if (share.writes && history.group() == 0) newest.put(p, share);
  finish<ruled>(p, share, newest, parts, history.active);
}

// For 2-byte types, head sizes up to 128, and more query heads than key heads.
template <bool ruled, typename T, typename S>
void attend_for_heads(Stream& stream, const DecodeAttentionParams<T>& p) {
  const int chunks = p.beams * HeadShare::chunks_of(p.heads / p.kv_heads);
  const auto shared = [&](int warps) {  // bytes: the ring, and the parts
    return warps * (kWarp * SharedSoftmax<T, S>::Tiles::kBytes +
                    HeadShare::kMost * (p.head_dim + 2) * sizeof(float));
  };
  const Plan plan(stream, p, static_cast<int64_t>(p.sentences) * p.kv_heads * chunks, 1, 1, shared);
  launch(stream, decode_heads_kernel<ruled, T, S>,
         dim3(p.kv_heads, p.sentences, chunks * plan.splits), plan.warps * kWarp,
         shared(plan.warps), p);
}

}  // namespace decoding::cuda
