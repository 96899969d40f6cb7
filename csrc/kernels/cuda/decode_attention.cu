// One block serves all beams of a (sentence, head), so that what they share is read once. Groups of
// lanes share out the positions: each reads whole rows of keys and values, 16 bytes a lane, and
// keeps an online softmax for every beam. These are merged over groups, warps and, where blocks
// split a long history between them, over blocks (flash decoding, Dao et al. 2023).
//
// Rows come in tiles. A tile holds 4 shared positions, which every beam looks at, or 4 / beams
// positions of the histories with a row for each beam. Two tiles are requested before the previous
// kernel has ended, and each later one while its predecessor is worked on: few rows would else wait
// for memory all the time. The newest position stems from the previous kernel and opens the
// softmax.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/decode_attention.cuh"
#include "kernels/cuda/launch.cuh"

namespace decoding {
namespace cuda {
namespace {

constexpr int kSplitRows = 256;  // rows of keys that are worth a block of their own

// The part of the work that is this block's.
// Grid: heads times chunks of `beams` beams, sentences, splits.
template <int beams>
struct Share {
  bool exists = false;
  int head, beam, count;  // beams [beam, beam + count) of the sentence
  int sentence;           // its id
  int chunk, split, splits;
  int shared_start, shared_length;  // of the sentence
  int own_length;                   // positions of the history, without the newest
  int table;                        // of the slots

  template <typename T>
  __device__ explicit Share(const DecodeAttentionParams<T>& p) {
    const StepState now = *p.now;
    sentence = p.live[blockIdx.y];  // read at once with `now`
    if (static_cast<int>(blockIdx.y) >= now.live_count) return;
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
    exists = split < splits;
  }
};

// Where the keys and values of a share lie.
template <typename T, typename S, int beams>
struct History {
  const T *shared_k, *shared_v;  // of the sentence and head
  const T *self_k, *self_v;      // of the head in slot 0
  const int32_t* slots;          // [beams, target], from the first beam on
  int64_t slot_stride;
  int dim, target, count;
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
    slot_stride = static_cast<int64_t>(p.heads) * target * dim;
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

  // Starts the loads of the i-th tile; behind the last one it is empty.
  __device__ __forceinline__ Tile<T, S> request(int i) const {
    Tile<T, S> tile;
    if (i < shared_tiles) {
      request_shared(tile, i);
    } else if (i < tiles) {
      request_own(tile, i - shared_tiles);
    }
    return tile;
  }

  // Neighbouring groups read neighbouring positions.
  __device__ __forceinline__ void request_shared(Tile<T, S>& tile, int i) const {
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const int position = shared_begin + (i * kTileRows + r) * groups() + group();
      tile.valid[r] = position < shared_end;
      if (!tile.valid[r]) continue;
      tile.k[r].load(shared_k + static_cast<int64_t>(position) * dim, dim);
      tile.v[r].load(shared_v + static_cast<int64_t>(position) * dim, dim);
    }
  }

  // Row r belongs to beam r % beams.
  __device__ __forceinline__ void request_own(Tile<T, S>& tile, int i) const {
    int positions[kTileRows], holders[kTileRows];
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      positions[r] = own_begin + (i * (kTileRows / beams) + r / beams) * groups() + group();
      tile.valid[r] = positions[r] < own_end && r % beams < count;
      if (tile.valid[r]) holders[r] = slots[r % beams * target + positions[r]];
    }
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      if (!tile.valid[r]) continue;
      const int64_t at = holders[r] * slot_stride + static_cast<int64_t>(positions[r]) * dim;
      tile.k[r].load(self_k + at, dim);
      tile.v[r].load(self_v + at, dim);
    }
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
  Row<T, S> q[beams], k, v;
#pragma unroll
  for (int b = 0; b < beams; ++b) {
    if (b < share.count) q[b].load(p.q + at + static_cast<int64_t>(b) * p.stride, dim);
  }
  if (opens) {
    k.load(p.k + at + static_cast<int64_t>(warp) * p.stride, dim);
    v.load(p.v + at + static_cast<int64_t>(warp) * p.stride, dim);
  }
#pragma unroll
  for (int b = 0; b < beams; ++b) {
#pragma unroll
    for (int e = 0; e < S::elements; ++e) states[b].q[e] = q[b][e] * (p.scale * kLog2e);
    if (!opens || b != warp) continue;
    const float score = states[b].score(k);
    if (threadIdx.x % kWarp >= S::lanes) continue;  // one group speaks for the position
    states[b].maximum = score;
    states[b].total = 1;
#pragma unroll
    for (int e = 0; e < S::elements; ++e) states[b].sum[e] = v[e];
  }
  if (opens && threadIdx.x % kWarp < S::lanes) {
    const int64_t slot = static_cast<int64_t>(share.sentence) * p.beams + share.beam + warp;
    const int64_t to = ((slot * p.heads + share.head) * p.target + share.own_length) * dim;
    k.store(p.self_k + to, dim);
    v.store(p.self_v + to, dim);
  }
}

// Merges the parts of the block's warps, then those of the blocks of a split history.
template <typename T, int beams>
__device__ __forceinline__ void close(const DecodeAttentionParams<T>& p, const Share<beams>& share,
                                      const float* parts) {
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const int dim = p.head_dim, size = dim + 2;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * p.beams + share.beam;
  const int pair = blockIdx.y * p.heads + share.head;
  float* partial = p.partial + (static_cast<int64_t>(pair) * kSplits * p.beams + share.beam) * size;
  const auto write = [&](int b, int d, float sum, float total) {
    p.y[((row + b) * p.heads + share.head) * dim + d] =
        from_float<T>(total == 0 ? 0.0f : sum / total);
  };
  for (int b = warp; b < share.count; b += warps) {
    float* mine = partial + (share.split * p.beams + b) * size;
    merge_parts(parts + b * size, warps, beams * size, dim,
                [&](int d, float sum, float maximum, float total) {
                  if (share.splits == 1) return write(b, d, sum, total);
                  mine[d] = sum;
                  if (d > 0) return;
                  mine[dim] = maximum;
                  mine[dim + 1] = total;
                });
  }
  if (share.splits == 1) return;
  const int chunks = gridDim.x / p.heads;
  if (!last_to_arrive(p.tickets + pair * chunks + share.chunk, share.splits)) return;
  for (int b = warp; b < share.count; b += warps) {
    merge_parts(partial + b * size, share.splits, p.beams * size, dim,
                [&](int d, float sum, float, float total) { write(b, d, sum, total); });
  }
}

template <typename T, typename S, int beams>
__global__ void __launch_bounds__(kMaxWarps* kWarp)
    decode_attention_kernel(const DecodeAttentionParams<T> p) {
  static_assert(kTileRows % beams == 0);
  extern __shared__ float parts[];  // [warps, beams, dim + 2]
  const Share<beams> share(p);
  if (!share.exists) {
    wait_for_previous();  // else this kernel might be over, and its successor start, before that
    return;
  }
  const History<T, S, beams> history(p, share);
  Tile<T, S> tile = history.request(0), next = history.request(1);
  wait_for_previous();
  let_next_start();

  Beam<T, S> states[beams];
  open(p, share, states);
  for (int i = 0; i < history.tiles; ++i) {
    const bool shared = i < history.shared_tiles;
#pragma unroll
    for (int b = 0; b < beams; ++b) {
      if (shared) {
        states[b].attend(tile, 0, 1);
      } else {
        states[b].attend(tile, b, beams);
      }
    }
    tile = next;
    next = history.request(i + 2);
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
  // Few blocks must be quick ones; of many, small ones fill a multiprocessor better.
  const int warps = blocks <= multiprocessors ? kMaxWarps : kMaxWarps / 2;
  int splits = 1;
  if (p.partial != nullptr && blocks <= kTickets) {
    const int64_t longest = p.shared_capacity + static_cast<int64_t>(p.target) * beams;
    const int64_t room = 2 * multiprocessors / blocks;
    splits = std::clamp<int64_t>(std::min(longest / kSplitRows, room), 1, kSplits);
  }
  launch(stream, decode_attention_kernel<T, S, beams>, dim3(p.heads * chunks, p.sentences, splits),
         warps * kWarp, warps * beams * (p.head_dim + 2) * sizeof(float), p);
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
