// On tensor cores. One block serves up to 8 beams of a (sentence, head): they are rows of the first
// operand, of which a product has 16. The history is cut into tiles of 16 positions: a shared tile,
// which all beams look at, is read once for all; a tile of one beam's own positions goes the same
// way, with its scores hidden from the other rows. So does the newest position, as a last tile
// that holds a row for each beam. Warps take turns at tiles, each with an online softmax of its
// own; these are merged over warps and, where a long history is split, over blocks (flash
// decoding, Dao et al. 2023).
//
// A warp's tiles arrive in shared memory without its help. Two are asked for before the previous
// kernel has ended, and each later one when its place is free; where its rows lie, the indirection
// table says one turn ahead. Only the queries and the newest position stem from the previous
// kernel.
#include <cstdint>

#include "kernels/cuda/decode_attention.cuh"
#include "kernels/cuda/fused_linear_mma.cuh"

namespace decoding {
namespace cuda {
namespace {

constexpr int kMostBeams = 8;
constexpr int kTile = 16;  // positions
constexpr int kAhead = 2;  // tiles that a warp has asked for
constexpr int kAll = -1;   // a tile's beam: all of them
constexpr int kEach = -2;  // row j is for beam j

// A tile: keys, then values, [16, dim] each. The 16-byte pieces of a row change places, so that
// those below each other lie in different banks.
template <int dim>
struct Place {
  static constexpr int kPieces = dim / 8;          // of a row
  static constexpr int kRows = kWarp / kPieces;    // that a warp copies at once
  static constexpr int kValues = kTile * dim * 2;  // bytes
  static constexpr int kBytes = 2 * kValues;
  uint32_t address;

  __device__ __forceinline__ uint32_t at(int row, int piece) const {
    return address + (row * kPieces + (piece ^ row % 8)) * 16;
  }
  // This lane's piece of the i-th group of rows.
  __device__ static int row(int i) { return i * kRows + threadIdx.x % kWarp / kPieces; }
  __device__ static int piece() { return threadIdx.x % kPieces; }
};

// The tiles of a warp.
template <typename T, int dim>
struct Tiles {
  using P = Place<dim>;
  const DecodeAttentionParams<T>& p;
  const Share& share;
  // Where the first row lies, and how large one is, in units of 8 elements: in the shared keys and
  // values, in those of the head in slot 0. slots_first: of the first beam, in the table.
  uint32_t shared_first, self_first, slots_first, row_size, slot_size;
  int shared_tiles;     // of the sentence; tiles of its beams follow
  uint32_t reciprocal;  // of the number of beams
  int begin, warp, warps;
  int count;   // the warp's tiles
  int active;  // warps that there is work for

  __device__ __forceinline__ Tiles(const DecodeAttentionParams<T>& p, const Share& share)
      : p(p), share(share), row_size(p.head_dim / 8) {
    shared_first = (share.head * p.shared_capacity + share.shared_start) * row_size;
    self_first = share.head * p.target * row_size;
    slot_size = p.heads * p.target * row_size;
    slots_first = (share.table * p.total_slots + share.sentence * p.beams + share.beam) * p.target;
    reciprocal = 0xFFFFFFFFu / share.count;
    shared_tiles = (share.shared_length + kTile - 1) / kTile;
    int end = shared_tiles + (share.own_length + kTile - 1) / kTile * share.count;
    begin = 0;
    if (share.splits > 1) {  // seldom, and divisions take long
      begin = end * share.split / share.splits;
      end = end * (share.split + 1) / share.splits;
    }
    warp = threadIdx.x / kWarp;
    warps = blockDim.x / kWarp;  // a power of two
    count = (end - begin + warps - 1 - warp) >> (31 - __clz(warps));
    active = max(1, min(warps, end - begin));
  }

  // The warp's i-th tile: its beam (or kAll) and the first of its positions.
  struct Tile {
    int beam, first;
  };
  __device__ __forceinline__ Tile tile(int i) const {
    const int t = begin + i * warps + warp;
    if (t < shared_tiles) return {kAll, t * kTile};
    const uint32_t own = t - shared_tiles;
    uint32_t block = __umulhi(own, reciprocal), beam = own - block * share.count;
    if (beam >= static_cast<uint32_t>(share.count)) ++block, beam -= share.count;
    return {static_cast<int>(beam), static_cast<int>(block * kTile)};
  }
  __device__ __forceinline__ int length(const Tile& tile) const {
    return tile.beam == kAll ? share.shared_length : share.own_length;
  }

  // Starts to look up which slots hold the i-th tile's positions, one in each of 16 lanes.
  __device__ __forceinline__ int look_up(int i) const {
    const Tile at = tile(i);
    const int lane = threadIdx.x % kTile, position = at.first + lane;
    const bool wanted = i < count && at.beam != kAll && position < share.own_length;
    return load_number(p.slots + slots_first + at.beam * p.target + position, wanted);
  }

  // Starts to copy the i-th tile, whose positions `holder` holds; nothing behind the last one.
  __device__ __forceinline__ void request(int i, int holder, P to) const {
    if (i < count) {
      const Tile at = tile(i);
      const bool shared = at.beam == kAll;
      const T *k = shared ? p.shared_k : p.self_k, *v = shared ? p.shared_v : p.self_v;
      const uint32_t start = (shared ? shared_first : self_first) + P::piece();
      const int end = length(at);
#pragma unroll
      for (int j = 0; j < kTile / P::kRows; ++j) {
        const int position = at.first + P::row(j);
        const uint32_t slot = __shfl_sync(kAllLanes, holder, P::row(j));  // 0 where shared
        const uint32_t offset = start + slot * slot_size + position * row_size;
        const bool valid = position < end && P::piece() * 8 < p.head_dim;
        copy(to, j, k + static_cast<size_t>(offset) * 8, v + static_cast<size_t>(offset) * 8,
             valid);
      }
    }
    close_copies();
  }

  // The same for the newest positions of the beams.
  __device__ __forceinline__ void request_newest(P to) const {
#pragma unroll
    for (int j = 0; j < kTile / P::kRows; ++j) {
      const int64_t at =
          (share.row + P::row(j)) * p.stride + share.head * p.head_dim + P::piece() * 8;
      copy(to, j, p.k + at, p.v + at, P::row(j) < share.count && P::piece() * 8 < p.head_dim);
    }
    close_copies();
  }

  // Puts the newest positions, which have arrived, into their slots.
  __device__ __forceinline__ void keep_newest(P from) const {
#pragma unroll
    for (int j = 0; j < kTile / P::kRows; ++j) {
      if (P::row(j) >= share.count || P::piece() * 8 >= p.head_dim) continue;
      const uint32_t slot = share.sentence * p.beams + share.beam + P::row(j);
      const uint32_t offset =
          self_first + slot * slot_size + share.own_length * row_size + P::piece();
      const uint32_t address = from.at(P::row(j), P::piece());
      store(p.self_k + static_cast<size_t>(offset) * 8, address);
      store(p.self_v + static_cast<size_t>(offset) * 8, address + P::kValues);
    }
  }

 private:
  __device__ __forceinline__ static void copy(P to, int j, const T* k, const T* v, bool valid) {
    const uint32_t address = to.at(P::row(j), P::piece());
    copy16(address, k, valid);
    copy16(address + P::kValues, v, valid);
  }
  __device__ __forceinline__ static void store(T* to, uint32_t shared_address) {
    uint4 piece;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                 : "r"(shared_address)
                 : "memory");
    *reinterpret_cast<uint4*>(to) = piece;
  }
};

// The online softmax of the beams in one warp: lanes 4g to 4g + 3 have beam g, and of every 8
// elements two each. Scores are in units of log 2.
template <typename T, int dim>
class Softmax {
 public:
  __device__ __forceinline__ Softmax(const DecodeAttentionParams<T>& p, const Share& share)
      : scale_(p.scale * kLog2e) {
    const T* q = p.q + (share.row + row()) * p.stride + share.head * p.head_dim + column();
#pragma unroll
    for (int i = 0; i < dim / 8; ++i) {
      q_[i] = load_number(reinterpret_cast<const int32_t*>(q + i * 8),
                          row() < share.count && i * 8 < p.head_dim);
    }
  }

  // beam: of the tile, or kAll or kEach; seen: how many of its positions there are.
  __device__ __forceinline__ void attend(Place<dim> tile, int beam, int seen) {
    const int lane = threadIdx.x % kWarp;
    float scores[2][4] = {};
#pragma unroll
    for (int d = 0; d < dim / 16; ++d) {
      uint32_t k[4];
      load_matrices(k, tile.at(lane / 16 * 8 + lane % 8, 2 * d + lane / 8 % 2));
      multiply_add<T>(scores[0], q_[2 * d], 0, q_[2 * d + 1], 0, k[0], k[1]);
      multiply_add<T>(scores[1], q_[2 * d], 0, q_[2 * d + 1], 0, k[2], k[3]);
    }
    const bool mine = beam == kAll || beam == row();
    float top = maximum_;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = i / 2 * 8 + column() + i % 2;
      const bool visible = beam == kEach ? position == row() : mine && position < seen;
      float& score = scores[i / 2][i % 2];
      score = visible ? score * scale_ : kNoScore;
      top = fmaxf(top, score);
    }
    rescale(warp_max<4>(top));
    uint32_t weights[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 pair = {power_of_two(scores[h][0] - reference(maximum_)),
                           power_of_two(scores[h][1] - reference(maximum_))};
      total_ += pair.x + pair.y;
      weights[h] = pack<T>(pair);
    }
#pragma unroll
    for (int d = 0; d < dim / 16; ++d) {
      uint32_t v[4];
      load_transposed(v, tile.at(lane % 16, 2 * d + lane / 16) + Place<dim>::kValues);
      multiply_add<T>(sums_[2 * d], weights[0], 0, weights[1], 0, v[0], v[1]);
      multiply_add<T>(sums_[2 * d + 1], weights[0], 0, weights[1], 0, v[2], v[3]);
    }
  }

  // What a warp has found, as its lanes have it: sums, maxima, totals.
  static constexpr int kPartSize = (dim / 8 + 1) * 2 * kWarp;  // floats
  __device__ __forceinline__ void store_part(float* part) const {
    float2* to = reinterpret_cast<float2*>(part) + threadIdx.x % kWarp;
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) to[n * kWarp] = {sums_[n][0], sums_[n][1]};
    to[dim / 8 * kWarp] = {maximum_, total_};
  }
  // Adds the parts of `count` warps, `stride` floats apart.
  __device__ __forceinline__ void add_parts(const float* parts, int count, int stride) {
    const auto element = [&](int w, int n) {
      return reinterpret_cast<const float2*>(parts + w * stride)[n * kWarp + threadIdx.x % kWarp];
    };
    float top = maximum_;
#pragma unroll 4
    for (int w = 0; w < count; ++w) top = fmaxf(top, element(w, dim / 8).x);
    rescale(top);
#pragma unroll 2
    for (int w = 0; w < count; ++w) {
      const float2 found = element(w, dim / 8);
      const float weight = power_of_two(found.x - reference(top));
      total_ = fmaf(weight, found.y, total_);
#pragma unroll
      for (int n = 0; n < dim / 8; ++n) add(n, weight, element(w, n));
    }
  }

  // What a block has found, [beams, head_dim + 2].
  __device__ __forceinline__ void store_partial(float* partial, int count, int head_dim) const {
    const float total = warp_sum<4>(total_);
    if (row() >= count) return;
    float* to = partial + row() * (head_dim + 2);
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) {
      if (n * 8 >= head_dim) break;
      *reinterpret_cast<float2*>(to + n * 8 + column()) = {sums_[n][0], sums_[n][1]};
    }
    if (column() == 0) *reinterpret_cast<float2*>(to + head_dim) = {maximum_, total};
  }
  // Begins afresh with those of `blocks` blocks, `stride` floats apart.
  __device__ __forceinline__ void load_partials(const float* partial, int blocks, int stride,
                                                int count, int head_dim) {
    const float* from = partial + (row() < count ? row() : 0) * (head_dim + 2);
    maximum_ = kNoScore;
    for (int i = 0; i < blocks; ++i) maximum_ = fmaxf(maximum_, from[i * stride + head_dim]);
    total_ = 0;
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) sums_[n][0] = sums_[n][1] = 0;
    for (int i = 0; i < blocks; ++i) {
      const float* block = from + i * stride;
      const float weight = power_of_two(block[head_dim] - reference(maximum_));
      if (column() == 0) total_ = fmaf(weight, block[head_dim + 1], total_);
#pragma unroll
      for (int n = 0; n < dim / 8; ++n) {
        if (n * 8 >= head_dim) break;
        add(n, weight, *reinterpret_cast<const float2*>(block + n * 8 + column()));
      }
    }
  }

  __device__ __forceinline__ void write(const DecodeAttentionParams<T>& p,
                                        const Share& share) const {
    const float total = warp_sum<4>(total_);
    if (row() >= share.count) return;
    const float normaliser = total == 0 ? 0.0f : 1.0f / total;
    T* y = p.y + ((share.row + row()) * p.heads + share.head) * p.head_dim + column();
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) {
      if (n * 8 >= p.head_dim) break;
      *reinterpret_cast<uint32_t*>(y + n * 8) =
          pack<T>({sums_[n][0] * normaliser, sums_[n][1] * normaliser});
    }
  }

 private:
  __device__ static int row() { return threadIdx.x % kWarp / 4; }
  __device__ static int column() { return threadIdx.x % 4 * 2; }

  __device__ __forceinline__ void rescale(float top) {
    const float factor = power_of_two(maximum_ - reference(top));
    maximum_ = top;
    total_ *= factor;
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) sums_[n][0] *= factor, sums_[n][1] *= factor;
  }
  __device__ __forceinline__ void add(int n, float weight, float2 pair) {
    sums_[n][0] = fmaf(weight, pair.x, sums_[n][0]);
    sums_[n][1] = fmaf(weight, pair.y, sums_[n][1]);
  }

  const float scale_;
  uint32_t q_[dim / 8];
  float sums_[dim / 8][4] = {};           // of the weighted values; rows from 8 on stay 0
  float maximum_ = kNoScore, total_ = 0;  // total: of the lane's own positions
};

template <typename T, int dim>
__global__ void __launch_bounds__(kMaxWarps* kWarp, dim == 64 ? 2 : 1)
    decode_attention_kernel(const DecodeAttentionParams<T> p) {
  using P = Place<dim>;
  static_assert(Softmax<T, dim>::kPartSize * sizeof(float) <= kAhead * P::kBytes);
  // A tile for the newest positions, and kAhead for each warp.
  extern __shared__ __align__(128) char memory[];
  const Share share(p, kMostBeams);
  const Tiles<T, dim> tiles(p, share);
  if (!share.exists || tiles.warp >= tiles.active) {
    wait_for_previous();  // else this kernel might be over, and its successor start, before that
    return;
  }
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const P newest{base};
  const auto place = [&](int i) {
    return P{base + (1 + tiles.warp * kAhead + i % kAhead) * P::kBytes};
  };
  const int first = tiles.look_up(0), second = tiles.look_up(1);
  tiles.request(0, first, place(0));
  tiles.request(1, second, place(1));
  int holder = tiles.look_up(kAhead);
  wait_for_previous();
  let_next_start();

  Softmax<T, dim> softmax(p, share);
  const bool has_newest = p.k != nullptr && share.split == 0 && tiles.warp == 0;
  if (has_newest) tiles.request_newest(newest);
  for (int i = 0; i < tiles.count; ++i) {
    wait_for_copies<kAhead - 1>();
    __syncwarp();
    const auto tile = tiles.tile(i);
    softmax.attend(place(i), tile.beam, tiles.length(tile) - tile.first);
    __syncwarp();
    tiles.request(i + kAhead, holder, place(i));
    holder = tiles.look_up(i + kAhead + 1);
  }
  if (has_newest) {
    wait_for_copies<0>();
    __syncwarp();
    softmax.attend(newest, kEach, 0);
    tiles.keep_newest(newest);
  }
  if (tiles.active > 1) {
    float* parts = reinterpret_cast<float*>(memory + P::kBytes);
    constexpr int kStride = kAhead * P::kBytes / sizeof(float);
    if (tiles.warp > 0) softmax.store_part(parts + tiles.warp * kStride);
    synchronize(tiles.active);
    if (tiles.warp > 0) return;
    softmax.add_parts(parts + kStride, tiles.active - 1, kStride);
  }
  if (share.splits > 1) {
    const int size = p.head_dim + 2;
    float* partial = share.partial(p);
    softmax.store_partial(partial + share.split * p.beams * size, share.count, p.head_dim);
    if (!last_to_arrive(share.ticket(p), share.splits)) return;
    softmax.load_partials(partial, share.splits, p.beams * size, share.count, p.head_dim);
  }
  softmax.write(p, share);
}

}  // namespace

template <typename T>
void decode_with_tensor_cores(Stream& stream, const DecodeAttentionParams<T>& p) {
  const auto run = [&]<int dim>() {
    start(stream, decode_attention_kernel<T, dim>, p, kMostBeams, 1,
          [](int warps) { return size_t(1 + warps * kAhead) * Place<dim>::kBytes; });
  };
  p.head_dim <= 64 ? run.template operator()<64>() : run.template operator()<128>();
}

template void decode_with_tensor_cores(Stream&, const DecodeAttentionParams<half>&);
template void decode_with_tensor_cores(Stream&, const DecodeAttentionParams<bfloat16>&);

}  // namespace cuda
}  // namespace decoding
