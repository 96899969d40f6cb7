// Query heads that share a key head, on tensor cores: a block takes up to 8 queries, so that keys
// and values are read once for all of them. These are heads of one beam, or all heads of several
// beams, where these share a prompt. Tiles come as in decode_beams.cuh, and go through products
// (decode_mma.cuh), in which a query sees nothing of the rows that are another beam's.
// The newest position, which stems from the previous kernel, joins when the warps' parts are
// merged.
#pragma once

#include <cstdint>

#include "kernels/attention/cuda/decode.cuh"
#include "kernels/attention/cuda/decode_inputs.cuh"
#include "kernels/attention/cuda/decode_mma.cuh"
#include "kernels/attention/cuda/decode_newest.cuh"
#include "kernels/attention/cuda/decode_tile.cuh"
#include "kernels/cuda/launch.cuh"

namespace decoding::cuda {

// What a block attends for: the heads [head, head + heads) of each of `beams` beams from `beam` on.
// Queries are numbered, those of the first beam first.
template <int most_beams>
struct HeadShare : Share {
  static constexpr int kQueries = kPartQueries, kBeams = most_beams;
  int key_head, head, heads, beam, beams;
  int first_head;  // of those that share the key head

  // Of a sentence and key head. With several beams a block has all heads.
  template <typename T>
  __host__ __device__ static int chunks_of(const DecodeAttentionParams<T>& p) {
    if (most_beams > 1) return (p.beams + most_beams - 1) / most_beams;
    return p.beams * ((p.heads / p.kv_heads + kQueries - 1) / kQueries);
  }

  template <bool ruled, typename T>
  __device__ static HeadShare of(const DecodeAttentionParams<T>& p) {
    HeadShare share{Share::of<ruled>(p, chunks_of(p), most_beams)};
    const int group = p.heads / p.kv_heads, parts = (group + kQueries - 1) / kQueries;
    const int first = share.chunk % parts * kQueries;
    share.key_head = blockIdx.x;
    share.first_head = share.key_head * group;
    share.head = share.first_head + first;
    share.heads = min(kQueries, group - first);
    share.beam = share.chunk / parts * most_beams;
    share.beams = min(most_beams, p.beams - share.beam);
    return share;
  }

  __device__ int count() const { return heads * beams; }  // of queries
  __device__ int beam_of(int query) const { return most_beams == 1 ? 0 : query / heads; }
  __device__ int head_of(int query) const { return head + query - beam_of(query) * heads; }

  // Of q, k, v and y; `b` counts from the block's first beam.
  template <typename T>
  __device__ int64_t row(const DecodeAttentionParams<T>& p, int b) const {
    return static_cast<int64_t>(blockIdx.y) * p.beams + beam + b;
  }
};

// The queries of a block, held by the groups of lanes of its first warp.
template <bool ruled, typename T, typename S, int beams>
class Finish {
 public:
  // Asks for the queries and their newest positions.
  template <typename Inputs>
  __device__ __forceinline__ Finish(const DecodeAttentionParams<T>& p,
                                    const HeadShare<beams>& share, const Inputs& inputs)
      : p_(p), share_(share) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = query(j), in = min(i, share.count() - 1);
      newest_[j] =
          Newest<T, S>(inputs, in, p.k != nullptr && share.split == 0 && i < share.count());
    }
  }

  // Merges what `count` warps have left in `parts` with the newest positions, and writes the
  // results of the block, or its part of them where a history is split, of which the last block
  // makes the whole.
  __device__ __forceinline__ void operator()(const float* parts, int count) const {
    const int dim = p_.head_dim, size = dim + 2;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = query(j), head = share_.head_of(min(i, share_.count() - 1));
      Beam<T, S> state = newest_[j].template open<ruled>(p_, head);
      if (i >= share_.count()) continue;
      if (newest_[j].exists && head == share_.first_head) {
        newest_[j].put(p_, share_, share_.key_head, share_.beam + share_.beam_of(i));
      }
      state.absorb(parts + i * size, count, kMost * size, dim);
      if (share_.splits == 1) {
        write(state, i);
      } else {
        state.store(p_.partial + share_.part(share_.split, kMost, size) + i * size, dim);
      }
    }
    if (share_.splits == 1 || !last_to_arrive(p_.tickets + share_.ticket(), share_.splits)) return;
#pragma unroll 1
    for (int j = 0; j < kHeld; ++j) {
      const int i = query(j);
      if (i >= share_.count()) continue;
      Beam<T, S> state{};
      state.absorb(p_.partial + share_.part(0, kMost, size) + i * size, share_.splits,
                   share_.part_stride(kMost, size), dim);
      write(state, i);
    }
  }

 private:
  static constexpr int kMost = kPartQueries, kGroups = kWarp / S::lanes, kHeld = kMost / kGroups;

  __device__ static int query(int j) { return j * kGroups + threadIdx.x % kWarp / S::lanes; }

  __device__ __forceinline__ void write(const Beam<T, S>& state, int i) const {
    const int64_t at = share_.row(p_, share_.beam_of(i)) * p_.heads + share_.head_of(i);
    state.result().store(p_.y + at * p_.head_dim, p_.head_dim);
  }

  const DecodeAttentionParams<T>& p_;
  const HeadShare<beams>& share_;
  Newest<T, S> newest_[kHeld];
};

template <bool ruled, bool turns, typename T, typename S, int beams>
__global__ void __launch_bounds__(kMaxWarps* kWarp, S::vectors == 1 ? 2 : 1)
    decode_heads_kernel(const DecodeAttentionParams<T> p) {
  extern __shared__ uint4 memory[];
  const auto share = HeadShare<beams>::template of<ruled>(p);
  if (!share.exists) {
    wait_for_previous();  // else this kernel might be over, and its successor start, before that
    return;
  }
  History<T, S, beams> history(p, share, share.key_head, share.beam, share.beams);
  using Tiles = SharedSoftmax<T, S>::Tiles;
  const bool works = history.warp < history.active;
  Tiles ring(memory);
#pragma unroll 1
  for (int i = 0; works && i < Tiles::kTiles; ++i) ring.close(history.request(ring, i));
  const Inputs<turns, T, S, HeadShare<beams>> inputs(p, share,
                                                     memory + blockDim.x * (Tiles::kBytes / 16));
  wait_for_previous();
  let_next_start();

  inputs.turn();
  if (!works) return;
  const int dim = p.head_dim, count = share.count();
  SharedSoftmax<T, S> softmax;
  const int query = min(softmax.query(), count - 1);
  const int beam = share.beam_of(query), head = share.head_of(query);
  softmax.load(count, dim, [&](int) { return inputs.query(query); });
  for (int i = 0; i < history.tiles; ++i) {
    ring.wait();
    __syncwarp();
    softmax.attend(ring, i, p.scale, [&](int j, float score) {
      if constexpr (ruled) score = follow(p.rules, head, score, history.distance_of_row(i, j));
      return history.sees(beam, i, j) ? score : kNoScore;
    });
    __syncwarp();
    ring.close(history.request(ring, i + Tiles::kTiles));
  }
  float* parts =
      reinterpret_cast<float*>(memory) + blockDim.x * (Tiles::kBytes / 4) + inputs.bytes(dim) / 4;
  softmax.store(parts + history.warp * kPartQueries * (dim + 2), count, dim);
  if (history.warp > 0) return synchronize(history.active);
  const Finish<ruled, T, S, beams> finish(p, share, inputs);
  synchronize(history.active);
  finish(parts, history.active);
}

template <bool ruled, bool turns, typename T, typename S, int beams>
void launch_heads(Stream& stream, const DecodeAttentionParams<T>& p) {
  const int chunks = HeadShare<beams>::chunks_of(p);
  const auto shared = [&](int warps) {  // bytes: the ring, what has turned, and the parts
    return warps * (kWarp * SharedSoftmax<T, S>::Tiles::kBytes +
                    kPartQueries * (p.head_dim + 2) * sizeof(float)) +
           Inputs<turns, T, S, HeadShare<beams>>::bytes(p.head_dim);
  };
  const Plan plan(stream, p, static_cast<int64_t>(p.sentences) * p.kv_heads * chunks, beams, 1,
                  shared);
  launch(stream, decode_heads_kernel<ruled, turns, T, S, beams>,
         dim3(p.kv_heads, p.sentences, chunks * plan.splits), plan.warps * kWarp,
         shared(plan.warps), p);
}

template <bool ruled, bool turns, typename S, typename T>
void start_heads(Stream& stream, const DecodeAttentionParams<T>& p) {
  const int group = p.heads / p.kv_heads;
  const bool little = p.k != nullptr && p.shared_capacity <= kLittleShared * p.sentences;
  if (p.beams == 1 || group > kPartQueries / 2 || little) {
    launch_heads<ruled, turns, T, S, 1>(stream, p);
  } else if (p.beams == 2 || group > kPartQueries / 4) {
    launch_heads<ruled, turns, T, S, 2>(stream, p);
  } else {
    launch_heads<ruled, turns, T, S, 4>(stream, p);
  }
}

// For 2-byte types and rows of whole pieces of 16 bytes, where heads share keys.
template <bool ruled, bool turns, typename T>
void attend_for_heads(Stream& stream, const DecodeAttentionParams<T>& p) {
  if (p.head_dim <= 64) {
    start_heads<ruled, turns, Shape<8, 8, 1>>(stream, p);
  } else if (p.head_dim <= 128) {
    start_heads<ruled, turns, Shape<8, 16, 1>>(stream, p);
  } else {
    start_heads<ruled, turns, Shape<8, 16, kMaxHeadDim / 128>>(stream, p);
  }
}

}  // namespace decoding::cuda
