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
// the shared tiles: a matrix of 16 positions for all beams at once (decode_attention_mma.cuh).
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/decode_attention.cuh"
#include "kernels/cuda/decode_attention_mma.cuh"
#include "kernels/cuda/launch.cuh"

namespace decoding {
namespace cuda {
namespace {

constexpr int kSplitRows = 256;              // rows of keys that are worth a block of their own
constexpr int kWarpsPerMultiprocessor = 16;  // that a launch should come to
constexpr int kLittleShared = 64;            // positions that each beam may well read for itself

// The part of the work that is this block's.
// Grid: heads, sentences, splits times chunks of `beams` beams. What it reads is read before the
// previous kernel has ended.
template <int beams>
struct Share {
  bool exists;
  int head, beam, count;  // beams [beam, beam + count) of the sentence
  int sentence;           // its id
  int chunk, chunks, split, splits;
  int shared_start, shared_length;  // of the sentence
  int own_length;                   // positions of the history, without the newest
  int table;                        // of the slots

  // The first beam's, of q, k, v and y.
  template <typename T>
  __device__ int64_t row(const DecodeAttentionParams<T>& p) const {
    return static_cast<int64_t>(blockIdx.y) * p.beams + beam;
  }

  template <typename T>
  __device__ explicit Share(const DecodeAttentionParams<T>& p) {
    const StepState now = *p.now;
    const int id = p.live[blockIdx.y];
    const bool alive = static_cast<int>(blockIdx.y) < now.live_count;
    sentence = alive ? id : 0;
    head = blockIdx.x;
    chunks = (p.beams + beams - 1) / beams;
    chunk = blockIdx.z % chunks;
    split = blockIdx.z / chunks;
    beam = chunk * beams;
    count = min(beams, p.beams - beam);
    shared_start = p.shared_k == nullptr ? 0 : p.shared_offsets[sentence];
    shared_length = p.shared_k == nullptr ? 0 : p.shared_offsets[sentence + 1] - shared_start;
    own_length = p.k == nullptr ? 0 : now.position;
    table = now.number % 2;
    const int wanted = (shared_length + own_length * beams) / kSplitRows;
    splits = max(1, min(static_cast<int>(gridDim.z) / chunks, wanted));
    exists = alive && split < splits;
  }
};

// Where the keys and values of a share lie, and which of them are this warp's. Warps take turns at
// whole tiles, so that a short history leaves the last ones out.
template <typename T, typename S, int beams>
struct History {
  static constexpr int kGroups = kWarp / S::lanes;          // of a warp
  static constexpr int kShared = kTileRows * kGroups;       // positions in a tile that is shared
  static constexpr int kOwn = kTileRows / beams * kGroups;  // positions in one that is not
  // Slots are looked up a tile ahead; with several beams there are no registers for that.
  static constexpr bool kLooksAhead = beams == 1;

  const DecodeAttentionParams<T>& p;
  // Where the first row lies, and how large one is, in units of width elements: in the shared keys
  // and values, in those of the head in slot 0. slots_first: of the first beam, in the table.
  uint32_t shared_first, self_first, slots_first, row_size, slot_size;
  int count;                                         // of beams
  int shared_begin, shared_end, own_begin, own_end;  // positions
  int warp, warps;
  int shared_tiles, tiles;  // the warp's
  int active;               // warps that there is work for

  __device__ History(const DecodeAttentionParams<T>& p, const Share<beams>& share)
      : p(p), row_size(p.head_dim / S::width), count(share.count) {
    shared_first = (share.head * p.shared_capacity + share.shared_start) * row_size;
    self_first = share.head * p.target * row_size;
    slot_size = p.heads * p.target * row_size;
    slots_first = (share.table * p.total_slots + share.sentence * p.beams + share.beam) * p.target;
    shared_begin = own_begin = 0;
    shared_end = share.shared_length;
    own_end = share.own_length;
    if (share.splits > 1) {  // seldom, and divisions take long
      const int split = share.split, splits = share.splits;
      shared_begin = share.shared_length * split / splits;
      shared_end = share.shared_length * (split + 1) / splits;
      own_begin = share.own_length * split / splits;
      own_end = share.own_length * (split + 1) / splits;
    }
    warp = threadIdx.x / kWarp;
    warps = blockDim.x / kWarp;  // a power of two
    const int shared_of_all = (shared_end - shared_begin + kShared - 1) / kShared;
    const int own_of_all = (own_end - own_begin + kOwn - 1) / kOwn;
    const int shift = 31 - __clz(warps);
    shared_tiles = (shared_of_all + warps - 1 - warp) >> shift;
    tiles = shared_tiles + ((own_of_all + warps - 1 - warp) >> shift);
    active = min(warps, max(max(shared_of_all, own_of_all), (count * S::lanes + 31) / 32));
    if constexpr (kLooksAhead) holders = look_up(shared_tiles);
  }

  __device__ static int group() { return threadIdx.x % kWarp / S::lanes; }

  // Asks for the i-th tile, and says which of its rows there are, a bit for each.
  __device__ __forceinline__ uint32_t request(Ring<T, S>& ring, int i) {
    if (i < shared_tiles) return request_shared(ring, i);
    return i < tiles ? request_own(ring, i) : 0;
  }

  __device__ __forceinline__ uint32_t request_shared(Ring<T, S>& ring, int i) const {
    uint32_t rows = 0;
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const int position = shared_position(i, r * kGroups + group());
      const bool valid = position < shared_end;
      ring.request(i, r, p.shared_k, p.shared_v, shared_first + position * row_size, p.head_dim,
                   valid);
      rows |= static_cast<uint32_t>(valid) << r;
    }
    return rows;
  }

  __device__ __forceinline__ uint32_t request_own(Ring<T, S>& ring, int i) {
    Holders found;
    if constexpr (kLooksAhead) {
      found = holders;
      holders = look_up(i + 1);
    } else {
      found = look_up(i);
    }
    const int first = first_of_own(i);
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const int position = first + r / beams * kGroups;
      ring.request(i, r, p.self_k, p.self_v,
                   self_first + found.slots[r] * slot_size + position * row_size, p.head_dim,
                   (found.rows >> r & 1) != 0);
    }
    return found.rows;
  }

  // The j-th position of shared tile i.
  __device__ __forceinline__ int shared_position(int i, int j) const {
    return shared_begin + (i * warps + warp) * kShared + j;
  }

 private:
  // The slots that hold the rows of an own tile; `rows` has a bit for each that there is.
  struct Holders {
    int32_t slots[kTileRows];
    uint32_t rows;
  };
  Holders holders;  // of the next own tile, where they are looked up ahead

  __device__ __forceinline__ Holders look_up(int i) const {
    Holders found;
    found.rows = 0;
    const int first = first_of_own(i);
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const int position = first + r / beams * kGroups;
      const bool valid = position < own_end && r % beams < count;
      found.slots[r] = load_number(p.slots + slots_first + r % beams * p.target + position, valid);
      found.rows |= static_cast<uint32_t>(valid) << r;
    }
    return found;
  }

  // The group's first position in own tile i. Row r of it belongs to beam r % beams.
  __device__ __forceinline__ int first_of_own(int i) const {
    return own_begin + ((i - shared_tiles) * warps + warp) * kOwn + group();
  }
};

// The newest position of beam b, in the block's group b.
template <typename T, typename S>
struct Newest {
  Row<T, S> q, k, v;
  bool exists;

  template <int beams>
  __device__ __forceinline__ Newest(const DecodeAttentionParams<T>& p, const Share<beams>& share) {
    const int group = threadIdx.x / S::lanes;
    const int64_t at = (share.row(p) + group) * p.stride + share.head * p.head_dim;
    exists = p.k != nullptr && share.split == 0 && group < share.count;
    q.load(p.q + at, p.head_dim, exists);
    k.load(p.k + at, p.head_dim, exists);
    v.load(p.v + at, p.head_dim, exists);
  }
};

// Opens the softmax of each beam in one group of lanes: with the newest position, whose key and
// value are also put in their slot, and with the part (null: none) that stems from tensor cores.
template <typename T, typename S, int beams>
__device__ __forceinline__ void open(const DecodeAttentionParams<T>& p, const Share<beams>& share,
                                     const Newest<T, S>& newest, const float* parts,
                                     Beam<T, S> (&states)[beams]) {
  const int group = threadIdx.x / S::lanes, dim = p.head_dim;
  Row<T, S> q[beams];
#pragma unroll
  for (int b = 0; b < beams; ++b) {
    q[b].load(p.q + (share.row(p) + b) * p.stride + share.head * dim, dim, b < share.count);
  }
  Beam<T, S> own;
#pragma unroll
  for (int e = 0; e < S::elements; ++e) own.q[e] = newest.q[e] * p.scale;
  const float score = own.score(newest.k);
  own.maximum = newest.exists ? score : kNoScore;
  own.total = newest.exists ? 1.0f : 0.0f;
#pragma unroll
  for (int e = 0; e < S::elements; ++e) own.sum[e] = newest.v[e];
  const int beam = parts == nullptr ? group : group % static_cast<int>(kWarp / S::lanes);
  if (parts != nullptr && beam < share.count) {
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
  if (newest.exists) {
    const int64_t slot = static_cast<int64_t>(share.sentence) * p.beams + share.beam + group;
    const int64_t to = ((slot * p.heads + share.head) * p.target + share.own_length) * dim;
    newest.k.store(p.self_k + to, dim);
    newest.v.store(p.self_v + to, dim);
  }
}

// In one warp: writes the results of a block, or its part of them where a history is split, of
// which the last block makes the whole.
template <typename T, typename S, int beams>
__device__ __forceinline__ void close(const DecodeAttentionParams<T>& p, const Share<beams>& share,
                                      const Merged<T, S, beams>& merged,
                                      Beam<T, S> (&states)[beams]) {
  const int dim = p.head_dim, size = dim + 2;
  const int pair = blockIdx.y * p.heads + share.head;
  float* partial = p.partial + (static_cast<int64_t>(pair) * kSplits * p.beams + share.beam) * size;
  const auto for_held = [&](auto&& call) {
#pragma unroll
    for (int j = 0; j < merged.kHeld; ++j) {
      const int b = merged.first + j;
      if (merged.speaks && b < share.count) call(states[j], b);
    }
  };
  if (share.splits > 1) {
    for_held([&](Beam<T, S>& state, int b) {
      state.store(partial + (share.split * p.beams + b) * size, dim);
    });
    if (!last_to_arrive(p.tickets + pair * share.chunks + share.chunk, share.splits)) return;
    for_held([&](Beam<T, S>& state, int b) {
      state = {};
      state.absorb(partial + b * size, share.splits, p.beams * size, dim);
    });
  }
  for_held([&](Beam<T, S>& state, int b) {
    state.result().store(p.y + ((share.row(p) + b) * p.heads + share.head) * dim, dim);
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
__global__ void __launch_bounds__(kMaxWarps* kWarp, S::width > 1 && S::lanes < 32 ? 2 : 1)
    decode_attention_kernel(const DecodeAttentionParams<T> p) {
  static_assert(kTileRows % beams == 0);
  constexpr bool kTogether = beams > 1 && S::lanes == 8;  // shared tiles go to the tensor cores
  extern __shared__ uint4 memory[];
  const Share<beams> share(p);
  if (!share.exists) {
    wait_for_previous();  // else this kernel might be over, and its successor start, before that
    return;
  }
  History<T, S, beams> history(p, share);
  const int warp = history.warp, dim = p.head_dim, size = dim + 2;
  if (warp >= history.active) {
    wait_for_previous();
    return;
  }
  Ring<T, S> ring(memory);
  constexpr int kAhead = Ring<T, S>::kTiles;
#pragma unroll 1
  for (int i = 0; i < kAhead; ++i) ring.close(history.request(ring, i));
  wait_for_previous();
  let_next_start();

  float* parts = reinterpret_cast<float*>(memory) + blockDim.x * (Ring<T, S>::kBytes / 4);
  float* part = parts + warp * beams * size;        // [beams, size], the warp's
  const bool alone = !kTogether || p.k != nullptr;  // whether there are tiles for each beam alone
  const Newest<T, S> newest(p, share);
  Beam<T, S> states[beams];
  const Merged<T, S, beams> merged;
  int i = 0;
  if constexpr (kTogether) {
    SharedSoftmax<T, S> together;
    together.load(p.q + share.row(p) * p.stride + share.head * dim, p.stride, share.count, dim);
    for (; i < history.shared_tiles; ++i) {
      ring.wait();
      __syncwarp();
      together.attend(ring, i, p.scale,
                      [&](int j) { return history.shared_position(i, j) < history.shared_end; });
      __syncwarp();
      ring.close(history.request(ring, i + kAhead));
    }
    together.store(part, share.count, dim);
    __syncwarp();
  }
  if (alone) {
    open(p, share, newest, kTogether ? part : nullptr, states);
    for (; i < history.tiles; ++i) {
      ring.wait();
      if (kTogether || beams == 1 || i >= history.shared_tiles) {
        attend<false>(ring, i, states);
      } else {
        attend<true>(ring, i, states);
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

template <typename T, typename S, int beams>
void start(Stream& stream, const DecodeAttentionParams<T>& p) {
  const int multiprocessors = stream.device().multiprocessors;
  const int chunks = (p.beams + beams - 1) / beams;
  const int64_t blocks = static_cast<int64_t>(p.sentences) * p.heads * chunks;
  // Few blocks must be quick ones; of many, small ones have less to merge. Each beam's newest
  // position needs a group of lanes.
  constexpr int kLeast = std::max(1, beams * S::lanes / static_cast<int>(kWarp));
  const auto shared = [&](int warps) {  // bytes: the ring, and the parts
    return warps * (kWarp * Ring<T, S>::kBytes + beams * (p.head_dim + 2) * sizeof(float));
  };
  int warps = kMaxWarps;
  while (warps > kLeast && (blocks * warps > kWarpsPerMultiprocessor * multiprocessors ||
                            shared(warps) > static_cast<size_t>(stream.device().shared_memory))) {
    warps /= 2;
  }
  int splits = 1;
  if (p.partial != nullptr && blocks <= kTickets) {
    const int64_t longest = p.shared_capacity + static_cast<int64_t>(p.target) * beams;
    const int64_t room = 2 * multiprocessors / blocks;
    splits = std::clamp<int64_t>(std::min(longest / kSplitRows, room), 1, kSplits);
  }
  launch(stream, decode_attention_kernel<T, S, beams>, dim3(p.heads, p.sentences, chunks * splits),
         warps * kWarp, shared(warps), p);
}

template <typename T, typename S>
void start(Stream& stream, const DecodeAttentionParams<T>& p) {
  const int64_t blocks = static_cast<int64_t>(p.sentences) * p.heads * p.beams;  // a beam each
  const bool few = p.k != nullptr && p.shared_capacity <= kLittleShared * p.sentences &&
                   blocks <= kWarpsPerMultiprocessor * stream.device().multiprocessors;
  if (S::vectors > 1 || p.beams == 1 || few) {  // more would not fit into the registers
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
                       whole(p.self_k, 0) && whole(p.self_v, 0) && whole(p.y, 0);
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
