// One block serves all beams of a (sentence, head), so that what they share is read once. Groups of
// lanes share out the positions: each reads whole rows of keys and values, 16 bytes a lane, and
// keeps an online softmax for every beam. These are merged over groups, warps and, where blocks
// split a long history between them, over blocks (flash decoding, Dao et al. 2023).
//
// Rows come in tiles. A tile holds 4 shared positions, which every beam looks at, or 4 / beams
// positions of the histories with a row for each beam. The first tiles are requested before the
// previous kernel has ended, and each later one while its predecessor is worked on. The newest
// position stems from the previous kernel and opens the softmax.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/decode_attention.cuh"
#include "kernels/cuda/launch.cuh"

namespace decoding {
namespace cuda {
namespace {

constexpr int kSplitRows = 256;  // rows of keys that are worth a block of their own

// The part of the work that is this block's.
// Grid: heads times chunks of `beams` beams, sentences, splits. What it reads is read before the
// previous kernel has ended.
template <int beams>
struct Share {
  bool exists;
  int head, beam, count;  // beams [beam, beam + count) of the sentence
  int sentence;           // its id
  int chunk, split, splits;
  int shared_start, shared_length;  // of the sentence
  int own_length;                   // positions of the history, without the newest
  int table;                        // of the slots

  template <typename T>
  __device__ explicit Share(const DecodeAttentionParams<T>& p) {
    const StepState now = *p.now;
    const int id = p.live[blockIdx.y];
    const bool alive = static_cast<int>(blockIdx.y) < now.live_count;
    sentence = alive ? id : 0;
    head = blockIdx.x % p.heads;
    chunk = blockIdx.x / p.heads;
    beam = chunk * beams;
    count = min(beams, p.beams - beam);
    shared_start = p.shared_k == nullptr ? 0 : p.shared_offsets[sentence];
    shared_length = p.shared_k == nullptr ? 0 : p.shared_offsets[sentence + 1] - shared_start;
    own_length = p.k == nullptr ? 0 : now.position;
    table = now.number % 2;
    split = blockIdx.z;
    const int wanted = (shared_length + own_length * beams) / kSplitRows;
    splits = max(1, min(static_cast<int>(gridDim.z), wanted));
    exists = alive && split < splits;
  }
};

// Where the keys and values of a share lie.
template <typename T, typename S, int beams>
struct History {
  const T *shared_k, *shared_v;  // of the sentence and head
  const T *self_k, *self_v;      // of the head in slot 0
  const int32_t* slots;          // [beams, target], from the first beam on
  int slot_stride, dim, target, count;
  int shared_begin, shared_end, own_begin, own_end;  // positions
  int shared_tiles, tiles;

  __device__ History(const DecodeAttentionParams<T>& p, const Share<beams>& share)
      : dim(p.head_dim), target(p.target), count(share.count) {
    const int64_t head = share.head;
    const int64_t shared = (head * p.shared_capacity + share.shared_start) * dim;
    shared_k = p.shared_k + shared;
    shared_v = p.shared_v + shared;
    self_k = p.self_k + head * target * dim;
    self_v = p.self_v + head * target * dim;
    slot_stride = p.heads * target * dim;
    const int64_t slot = static_cast<int64_t>(share.sentence) * p.beams + share.beam;
    slots = p.slots + (static_cast<int64_t>(share.table) * p.total_slots + slot) * target;
    const int split = share.split, splits = share.splits, step = kTileRows * groups();
    shared_begin = share.shared_length * split / splits;
    shared_end = share.shared_length * (split + 1) / splits;
    own_begin = share.own_length * split / splits;
    own_end = share.own_length * (split + 1) / splits;
    shared_tiles = (shared_end - shared_begin + step - 1) / step;
    tiles = shared_tiles + ((own_end - own_begin) * beams + step - 1) / step;
  }

  __device__ static int groups() { return blockDim.x / S::lanes; }
  __device__ static int group() { return threadIdx.x / S::lanes; }

  // Asks for the i-th tile, and says which of its rows there are, a bit for each. Neighbouring
  // groups read neighbouring positions.
  __device__ __forceinline__ uint32_t request(Ring<T, S>& ring, int i) const {
    const bool own = i >= shared_tiles;
    const int first =
        group() + (own ? own_begin + (i - shared_tiles) * (kTileRows / beams) * groups()
                       : shared_begin + i * kTileRows * groups());
    const int end = own ? own_end : shared_end;
    const T *k = own ? self_k : shared_k, *v = own ? self_v : shared_v;
    int64_t at[kTileRows];
    bool valid[kTileRows];
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const int position = first + (own ? r / beams : r) * groups();  // own: of beam r % beams
      valid[r] = position < end && !(own && r % beams >= count);
      const int holder = own && valid[r] ? slots[r % beams * target + position] : 0;
      at[r] = static_cast<int64_t>(holder) * slot_stride + static_cast<int64_t>(position) * dim;
    }
    uint32_t rows = 0;
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      ring.request(i, 0, r, k + at[r], dim, valid[r]);
      ring.request(i, 1, r, v + at[r], dim, valid[r]);
      rows |= static_cast<uint32_t>(valid[r]) << r;
    }
    return rows;
  }
};

// Loads the queries. The softmax of beam b opens in warp b with the newest position, whose key and
// value are also put in their slot.
template <typename T, typename S, int beams>
__device__ __forceinline__ void open(const DecodeAttentionParams<T>& p, const Share<beams>& share,
                                     Beam<T, S> (&states)[beams]) {
  const int warp = threadIdx.x / kWarp, dim = p.head_dim;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * p.beams + share.beam;
  const int64_t at = row * p.stride + share.head * dim;
  const bool opens = p.k != nullptr && share.split == 0 && warp < share.count;
  const bool speaks = opens && threadIdx.x % kWarp < S::lanes;  // one group for the position
  Row<T, S> q[beams], k, v;
#pragma unroll
  for (int b = 0; b < beams; ++b) {
    q[b].load(p.q + at + static_cast<int64_t>(b) * p.stride, dim, b < share.count);
  }
  k.load(p.k + at + static_cast<int64_t>(warp) * p.stride, dim, opens);
  v.load(p.v + at + static_cast<int64_t>(warp) * p.stride, dim, opens);
#pragma unroll
  for (int b = 0; b < beams; ++b) {
#pragma unroll
    for (int e = 0; e < S::elements; ++e) states[b].q[e] = q[b][e] * p.scale;
    const float score = states[b].score(k);
    const bool mine = speaks && b == warp;
    states[b].maximum = mine ? score : kNoScore;
    states[b].total = mine ? 1.0f : 0.0f;
#pragma unroll
    for (int e = 0; e < S::elements; ++e) states[b].sum[e] = mine ? v[e] : 0.0f;
  }
  if (speaks) {
    const int64_t slot = static_cast<int64_t>(share.sentence) * p.beams + share.beam + warp;
    const int64_t to = ((slot * p.heads + share.head) * p.target + share.own_length) * dim;
    k.store(p.self_k + to, dim);
    v.store(p.self_v + to, dim);
  }
}

// Calls visit(beam, d) in some thread for each element of the `count` beams.
template <int beams, typename Visit>
__device__ __forceinline__ void for_elements(int count, int dim, Visit&& visit) {
  const int warps = blockDim.x / kWarp;
  for (int i = threadIdx.x / kWarp; i < (dim + 31) / 32 * beams; i += warps) {
    const int b = i % beams, d = i / beams * 32 + threadIdx.x % kWarp;
    if (b < count && d < dim) visit(b, d);
  }
}

// Merges the parts of the block's warps, then those of the blocks of a split history.
template <typename T, int beams>
__device__ __forceinline__ void close(const DecodeAttentionParams<T>& p, const Share<beams>& share,
                                      const float* parts) {
  const int warps = blockDim.x / kWarp, dim = p.head_dim, size = dim + 2;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * p.beams + share.beam;
  const int pair = blockIdx.y * p.heads + share.head;
  float* partial = p.partial + (static_cast<int64_t>(pair) * kSplits * p.beams + share.beam) * size;
  const auto write = [&](int b, int d, float sum, float total) {
    p.y[((row + b) * p.heads + share.head) * dim + d] =
        from_float<T>(total == 0 ? 0.0f : sum / total);
  };
  for_elements<beams>(share.count, dim, [&](int b, int d) {
    const float* from = parts + b * size;
    const Merged<T> merged(from, warps, beams * size, dim);
    const float sum = merged.sum(from, warps, beams * size, d);
    if (share.splits == 1) return write(b, d, sum, merged.total);
    float* mine = partial + (share.split * p.beams + b) * size;
    mine[d] = sum;
    if (d > 0) return;
    mine[dim] = merged.maximum;
    mine[dim + 1] = merged.total;
  });
  if (share.splits == 1) return;
  const int chunks = gridDim.x / p.heads;
  if (!last_to_arrive(p.tickets + pair * chunks + share.chunk, share.splits)) return;
  for_elements<beams>(share.count, dim, [&](int b, int d) {
    const float* from = partial + b * size;
    const Merged<T> merged(from, share.splits, p.beams * size, dim);
    write(b, d, merged.sum(from, share.splits, p.beams * size, d), merged.total);
  });
}

// Every beam attends to all rows of a shared tile, or to each `beams`-th row of an own one.
template <bool shared, typename T, typename S, int beams>
__device__ __forceinline__ void attend(const Ring<T, S>& ring, int i, Beam<T, S> (&states)[beams]) {
  constexpr int kStep = shared ? 1 : beams;
  float weights[beams][kTileRows];
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    const Row<T, S> k = ring.read(i, 0, r);
#pragma unroll
    for (int b = r % kStep; b < beams; b += kStep) {
      const float score = states[b].score(k);
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

template <typename T, typename S, int beams>
__global__ void __launch_bounds__(kMaxWarps* kWarp, S::width > 1 ? 2 : 1)
    decode_attention_kernel(const DecodeAttentionParams<T> p) {
  static_assert(kTileRows % beams == 0);
  extern __shared__ uint4 memory[];
  float* parts = reinterpret_cast<float*>(memory) + blockDim.x * (Ring<T, S>::kBytes / 4);
  const Share<beams> share(p);
  if (!share.exists) {
    wait_for_previous();  // else this kernel might be over, and its successor start, before that
    return;
  }
  const History<T, S, beams> history(p, share);
  Ring<T, S> ring(memory);
  Beam<T, S> states[beams];
  // It first runs ahead, in the same loop: the code of a step, too, must come from memory.
  constexpr int kAhead = Ring<T, S>::kTiles;
  for (int i = -kAhead; i < max(1, history.tiles); ++i) {
    if (i == 0) {
      wait_for_previous();
      let_next_start();
      open(p, share, states);
    }
    if (i >= 0 && i < history.tiles) {
      ring.wait();
      if (beams == 1 || i < history.shared_tiles) {
        attend<true>(ring, i, states);
      } else {
        attend<false>(ring, i, states);
      }
    }
    ring.close(i + kAhead < history.tiles ? history.request(ring, i + kAhead) : 0);
  }
  const int size = p.head_dim + 2;
#pragma unroll
  for (int b = 0; b < beams; ++b) {
    states[b].merge();
    states[b].store(parts + (threadIdx.x / kWarp * beams + b) * size, p.head_dim);
  }
  __syncthreads();
  close(p, share, parts);
}

template <typename T, typename S, int beams>
void start(Stream& stream, const DecodeAttentionParams<T>& p) {
  const int multiprocessors = stream.device().multiprocessors;
  const int chunks = (p.beams + beams - 1) / beams;
  const int64_t blocks = static_cast<int64_t>(p.sentences) * p.heads * chunks;
  const auto shared = [&](int warps) {  // bytes: the ring, and the parts
    return warps * (kWarp * Ring<T, S>::kBytes + beams * (p.head_dim + 2) * sizeof(float));
  };
  // Few blocks must be quick ones; of many, small ones fill a multiprocessor better.
  const bool few = blocks <= 2 * multiprocessors &&
                   shared(kMaxWarps) <= static_cast<size_t>(stream.device().shared_memory);
  const int warps = few ? kMaxWarps : kMaxWarps / 2;
  int splits = 1;
  if (p.partial != nullptr && blocks <= kTickets) {
    const int64_t longest = p.shared_capacity + static_cast<int64_t>(p.target) * beams;
    const int64_t room = 2 * multiprocessors / blocks;
    splits = std::clamp<int64_t>(std::min(longest / kSplitRows, room), 1, kSplits);
  }
  launch(stream, decode_attention_kernel<T, S, beams>, dim3(p.heads * chunks, p.sentences, splits),
         warps * kWarp, shared(warps), p);
}

template <typename T, typename S>
void start(Stream& stream, const DecodeAttentionParams<T>& p) {
  if (S::vectors > 1 || p.beams == 1) {  // more would not fit into the registers
    start<T, S, 1>(stream, p);
  } else if constexpr (S::vectors == 1) {
    p.beams == 2 ? start<T, S, 2>(stream, p) : start<T, S, 4>(stream, p);
  }
}

}  // namespace
}  // namespace cuda

template <typename T>
void decode_attention(cuda::Stream& stream, const DecodeAttentionParams<T>& p) {
  if (p.sentences == 0) return;
  constexpr int kWidth = 16 / sizeof(T);
  const auto whole = [](const T* data, int64_t stride) { return cuda::aligned16<T>(data, stride); };
  const bool aligned = p.head_dim % kWidth == 0 && whole(p.q, p.stride) && whole(p.k, p.stride) &&
                       whole(p.v, p.stride) && whole(p.shared_k, 0) && whole(p.shared_v, 0) &&
                       whole(p.self_k, 0) && whole(p.self_v, 0);
  if (!aligned) {
    cuda::start<T, cuda::Shape<1, 32, kMaxHeadDim / 32>>(stream, p);
  } else if (p.head_dim <= 64) {
    cuda::start<T, cuda::Shape<kWidth, 64 / kWidth, 1>>(stream, p);
  } else if (p.head_dim <= 128) {
    cuda::start<T, cuda::Shape<kWidth, 128 / kWidth, 1>>(stream, p);
  } else {
    cuda::start<T, cuda::Shape<kWidth, 32, kMaxHeadDim / kWidth / 32>>(stream, p);
  }
}

#define INSTANTIATE(T) \
  template void decode_attention(cuda::Stream&, const DecodeAttentionParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
