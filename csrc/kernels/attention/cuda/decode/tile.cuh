// The part of a step's attention that one block computes, and where its keys and values are.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/cuda/decode/decode.cuh"
#include "kernels/attention/cuda/decode/parts.cuh"
#include "kernels/attention/cuda/decode/ring.cuh"
#include "kernels/attention/decode.h"
#include "kernels/cuda/stream.h"

namespace decoding::cuda {

constexpr int kResidentWarps = 16;      // that run at once on a multiprocessor
constexpr int kDeterministicWarps = 4;  // of a block, a compromise between few and many

// Grid: heads, sentences, splits times the chunks of a sentence's queries; where a block has one
// beam, rows take the place of sentences. All this is read before the previous kernel has ended.
struct WorkTile {
  bool exists;
  int index;     // of the sentence among the active ones
  int sentence;  // its id
  int beam;      // the first one
  int chunk, chunks, split, splits;
  int shared_length;                   // of the sentence
  int self_length;                     // positions of the history, without the newest
  int shared_from = 0, self_from = 0;  // the first ones that the newest sees
  int table;                           // of cache_indirection

  // beams: whose histories the block reads. y: its row or sentence of p.
  template <bool with_bias, int beams, typename T, typename C>
  __device__ static WorkTile of(const DecodeAttentionParams<T, C>& p, int y, int chunks) {
    WorkTile tile;
    tile.chunks = chunks;
    tile.chunk = blockIdx.z % chunks;
    tile.split = blockIdx.z / chunks;
    tile.index = beams == 1 ? y / p.beams : y;
    tile.beam = beams == 1 ? y - tile.index * p.beams : tile.chunk * beams;
    const StepState state = *p.state;
    const ActiveSentence listed = p.active[tile.index];
    const bool is_active = tile.index < state.active_count;
    const int sentence = is_active ? listed.id : 0;
    tile.sentence = sentence;
    tile.shared_length = p.shared_lengths == nullptr ? 0 : p.shared_lengths[sentence];
    tile.self_length = p.k == nullptr ? 0 : listed.position;
    if constexpr (with_bias) tile.apply_window(p.bias.window);
    tile.table = listed.table();
    const int wanted =
        (tile.shared_length - tile.shared_from + (tile.self_length - tile.self_from) * beams) /
        kSplitRows;
    tile.splits = max(1, min(static_cast<int>(gridDim.z) / chunks, wanted));
    tile.exists = is_active && tile.split < tile.splits;
    return tile;
  }

  // Of q, k, v and y; `b` counts from the block's first beam.
  template <typename T, typename C>
  __device__ int64_t row(const DecodeAttentionParams<T, C>& p, int b) const {
    return static_cast<int64_t>(index) * p.beams + beam + b;
  }

  // Of the blocks that split this tile.
  __device__ int counter() const { return (blockIdx.y * gridDim.x + blockIdx.x) * chunks + chunk; }

  // Offset of a split's partial results, and the stride to the next split's. Those of a block have
  // `queries` rows of `size` floats.
  __device__ int part(int split, int queries, int size) const {
    return split * part_stride(queries, size) + counter() * queries * size;
  }
  __device__ int part_stride(int queries, int size) const {
    return gridDim.x * gridDim.y * chunks * queries * size;
  }

 private:
  __device__ void apply_window(int window) {
    if (window == 0) return;
    const int first = max(0, shared_length + self_length - window + 1);
    shared_from = min(first, shared_length);
    self_from = max(0, first - shared_length);
  }
};

// Whether a block to each row makes no more blocks than run at once.
inline bool is_few(const Stream& stream, int64_t blocks) {
  return !stream.deterministic() && blocks <= kResidentWarps * stream.device().multiprocessors;
}

// Whether each beam may well read for itself what it shares with others.
template <typename T, typename C>
bool shares_little(const DecodeAttentionParams<T, C>& p) {
  return p.k != nullptr && most_shared(p) <= 64;
}

// The shape of a launch. A deterministic one has always as many warps, and splits a history where
// its own length asks for it: a row's bits depend on neither the other sentences nor the longest
// one.
struct Plan {
  int warps = kMaxWarps;  // of a block
  int splits = 1;         // blocks for a tile

  // longest: positions that a block reads, at most; least: warps; shared(warps): bytes of shared
  // memory.
  template <typename Shared>
  Plan(const Stream& stream, int64_t blocks, int64_t longest, int least, Shared&& shared) {
    const Device& device = stream.device();
    const bool fixed = stream.deterministic();
    // Few blocks must be quick ones. Many must be small, so that all of them run at once: what a
    // block waits for takes longer than what it computes.
    const int64_t wanted =
        fixed ? kDeterministicWarps : kResidentWarps * device.multiprocessors / blocks;
    while (warps > least &&
           (warps > wanted || shared(warps) > static_cast<size_t>(device.shared_memory))) {
      warps /= 2;
    }
    if (!fixed && blocks > kSplitCounters) return;
    const int64_t room = fixed ? kSplits : std::min(2 * device.multiprocessors, kPartials) / blocks;
    splits = std::clamp<int64_t>(std::min(longest / kSplitRows, room), 1, kSplits);
  }
};

// The keys and values of a block that this warp reads. Whole tiles are dealt to the warps in turn,
// so that a short history leaves the last warps out. beams: of the block, each with a history of
// its own.
template <bool with_bias, typename T, typename C, typename S, int beams>
struct KVRange {
  static constexpr int kGroups = kWarp / S::lanes;         // of a warp
  static constexpr int kSharedRows = kTileRows * kGroups;  // positions in a tile that is shared
  static constexpr int kSelfRows = kTileRows / beams * kGroups;  // positions in one that is not
  // Cells are looked up a tile ahead; with several beams there are no registers for that.
  static constexpr bool kLooksAhead = beams == 1;

  const DecodeAttentionParams<T, C>& p;
  // The head's first row in the pool and the size of a row, in units of width elements.
  uint32_t head_first, row_size;
  uint32_t first_cell;         // the head's, in the pool
  uint32_t indirection_first;  // of the first beam, in the table
  int sentence;  // its id: what is found by it is computed again, as registers are few
  int count;     // of beams
  int shared_from, shared_end, self_begin, self_end;  // positions
  int shared_begin;                // where the page of shared_from begins, and the first tile
  int shared_length, self_length;  // of the sentence
  int warp, warps;
  int shared_tiles, tiles;  // the warp's
  int active_warps;         // warps that there is work for

  __device__ KVRange(const DecodeAttentionParams<T, C>& p, const WorkTile& tile, int key_head,
                     int beam, int count)
      : p(p),
        row_size(p.head_dim / S::width),
        sentence(tile.sentence),
        count(count),
        shared_length(tile.shared_length),
        self_length(tile.self_length) {
    head_first = key_head * p.pool.pages * kPageSize * row_size;
    first_cell = key_head * p.pool.pages * kPageSize;
    indirection_first = (tile.table * p.total_rows + sentence * p.slots + beam) * p.target;
    shared_from = tile.shared_from;
    self_begin = tile.self_from;
    shared_end = tile.shared_length;
    self_end = tile.self_length;
    if (tile.splits > 1) take_split(tile.split, tile.splits);  // seldom, and divisions take long
    shared_begin = shared_from / kPageSize * kPageSize;
    warp = threadIdx.x / kWarp;
    warps = blockDim.x / kWarp;  // a power of two
    const int shared_of_all = (shared_end - shared_begin + kSharedRows - 1) / kSharedRows;
    const int self_of_all = (self_end - self_begin + kSelfRows - 1) / kSelfRows;
    const int shift = 31 - __clz(warps);
    shared_tiles = (shared_of_all + warps - 1 - warp) >> shift;
    tiles = shared_tiles + ((self_of_all + warps - 1 - warp) >> shift);
    active_warps = min(warps, max(max(shared_of_all, self_of_all), (count * S::lanes + 31) / 32));
    next_page = look_up_page(0);
    if constexpr (kLooksAhead) next_cells = look_up(shared_tiles);
  }

  __device__ static int group() { return threadIdx.x % kWarp / S::lanes; }

  // Requests the i-th tile; returns a bit for each of its rows that exists.
  template <typename Tiles>
  __device__ __forceinline__ uint32_t request(Tiles& ring, int i) {
    if (i < shared_tiles) return request_shared(ring, i);
    return i < tiles ? request_self(ring, i) : 0;
  }

  template <typename Tiles>
  __device__ __forceinline__ uint32_t request_shared(Tiles& ring, int i) {
    const uint32_t place = static_cast<uint32_t>(shared_position(i, group())) % kPageSize;
    const uint32_t cell = next_page * kPageSize + place, first = head_first + cell * row_size;
    next_page = look_up_page(i + 1);
    uint32_t rows = 0;
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const bool valid = sees_shared(i, r * kGroups + group());
      ring.request(i, r, p.pool, first + r * kGroups * row_size, first_cell + cell + r * kGroups,
                   p.head_dim, valid);
      rows |= static_cast<uint32_t>(valid) << r;
    }
    return rows;
  }

  template <typename Tiles>
  __device__ __forceinline__ uint32_t request_self(Tiles& ring, int i) {
    Cells found;
    if constexpr (kLooksAhead) {
      found = next_cells;
      next_cells = look_up(i + 1);
    } else {
      found = look_up(i);
    }
    const int32_t* list = p.self_pages.pages + sentence * p.self_pages.longest;
    uint32_t pages[kTileRows];
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      pages[r] = load_number(list + found.cells[r] / kPageSize, (found.rows >> r & 1) != 0);
    }
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const uint32_t cell = pages[r] * kPageSize + found.cells[r] % kPageSize;
      ring.request(i, r, p.pool, head_first + cell * row_size, first_cell + cell, p.head_dim,
                   (found.rows >> r & 1) != 0);
    }
    return found.rows;
  }

  // The j-th position of shared tile i.
  __device__ __forceinline__ int shared_position(int i, int j) const {
    return shared_begin + (i * warps + warp) * kSharedRows + j;
  }
  // Whether the block's queries see it; without a window those of all pages do.
  __device__ __forceinline__ bool sees_shared(int i, int j) const {
    const int position = shared_position(i, j);
    return position < shared_end && (!with_bias || position >= shared_from);
  }

  // The j-th position of self tile i, counted for one beam.
  __device__ __forceinline__ int self_position(int i, int j) const {
    return self_begin + ((i - shared_tiles) * warps + warp) * kSelfRows + j;
  }

  // In matrix row j of tile i: whether there is a key that the block's `beam` sees, and its
  // distance from the newest position.
  __device__ __forceinline__ bool sees(int beam, int i, int j) const {
    if (i < shared_tiles) return sees_shared(i, j);
    return j / kGroups % beams == beam && self_position(i, place(j)) < self_end;
  }
  __device__ __forceinline__ int distance_of_row(int i, int j) const {
    return distance(i, i < shared_tiles ? j : place(j));
  }

  // Distance from the j-th position of tile i to the newest one.
  __device__ __forceinline__ int distance(int i, int j) const {
    return self_length -
           (i < shared_tiles ? shared_position(i, j) - shared_length : self_position(i, j));
  }

 private:
  // Leaves the positions of one of `splits` blocks: whole pages of what is shared.
  __device__ __forceinline__ void take_split(int split, int splits) {
    const int first = shared_from / kPageSize, self_seen = self_end - self_begin;
    const int pages = (shared_end + kPageSize - 1) / kPageSize - first;
    shared_from = max(shared_from, (first + pages * split / splits) * kPageSize);
    shared_end = min(shared_end, (first + pages * (split + 1) / splits) * kPageSize);
    self_end = self_begin + self_seen * (split + 1) / splits;
    self_begin += self_seen * split / splits;
  }

  // A shared tile lies in one page, which is looked up a tile ahead.
  static_assert(kPageSize % kSharedRows == 0);
  uint32_t next_page;

  __device__ __forceinline__ uint32_t look_up_page(int i) const {
    const int32_t* list = p.shared_pages.pages + sentence * p.shared_pages.longest;
    return load_number(list + shared_position(i, 0) / kPageSize, i < shared_tiles);
  }

  // The position in a self tile that its matrix row j holds.
  __device__ static int place(int j) { return j / kGroups / beams * kGroups + j % kGroups; }

  // The cells that hold the rows of a self tile; `rows` has a bit for each that exists.
  struct Cells {
    uint32_t cells[kTileRows];
    uint32_t rows;
  };
  Cells next_cells;  // of the next self tile, where they are looked up ahead

  __device__ __forceinline__ Cells look_up(int i) const {
    Cells found;
    found.rows = 0;
    const int first = first_of_self(i);
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const int position = first + r / beams * kGroups;
      const bool valid = position < self_end && r % beams < count;
      const int32_t row = load_number(
          p.cache_indirection + indirection_first + r % beams * p.target + position, valid);
      found.cells[r] = position * p.slots + (row - sentence * p.slots);
      found.rows |= static_cast<uint32_t>(valid) << r;
    }
    return found;
  }

  // The group's first position in self tile i. Row r of it belongs to beam r % beams.
  __device__ __forceinline__ int first_of_self(int i) const { return self_position(i, group()); }
};

}  // namespace decoding::cuda
