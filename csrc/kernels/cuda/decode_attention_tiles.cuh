// The history of up to 8 beams as tiles for the tensor cores: where their rows come from, and where
// they lie in shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/decode_attention.cuh"
#include "kernels/cuda/fused_linear_mma.cuh"

namespace decoding::cuda {

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

}  // namespace decoding::cuda
