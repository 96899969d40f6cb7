// Tiles of keys and values on their way from memory to a warp.
#pragma once

#include <cstdint>

#include "kernels/attention/cuda/decode.cuh"

namespace decoding::cuda {

// The tiles that a warp has requested, oldest first, in shared memory that no other warp touches.
// There they arrive without the lanes' help, and take none of their registers.
//
// Each lane reads what it has requested itself. With `matrix`, where 8 lanes hold a row, or 16, a
// tile's keys (or values) are also a matrix of 16 rows, or 8: pieces change places within a row so
// that those below each other lie in different banks.
template <typename T, typename S, bool matrix = S::lanes == 8>
class Ring {
 public:
  static constexpr int kTiles = 2;
  static constexpr int kPieces = sizeof(RowFragment<T, S>) / 16;        // that a lane has of a row
  static constexpr int kBytes = kTiles * 2 * kTileRows * kPieces * 16;  // for a lane

  __device__ explicit Ring(uint4* memory)
      : memory_(memory + threadIdx.x / kWarp * (kBytes * kWarp / 16)) {}

  // Starts to copy row r of tile i; `offset`: of the row in k and in v, in units of width elements.
  __device__ __forceinline__ void request(int i, int r, const T* k, const T* v, uint32_t offset,
                                          int dim, bool valid) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const T* from = (which == 0 ? k : v) + static_cast<size_t>(offset) * S::width;
      if constexpr (S::width * sizeof(T) == 16) {
#pragma unroll
        for (int v = 0; v < S::vectors; ++v) {
          copy16(own(i, which, r, v), from + S::at(v), valid && S::at(v) < dim);
        }
      } else {  // too small pieces for asynchronous copies
        RowFragment<T, S> row;
        row.load(from, dim, valid);
#pragma unroll
        for (int v = 0; v < kPieces; ++v) memcpy(own(i, which, r, v), row.words + 4 * v, 16);
      }
    }
  }
  // Ends a tile; `valid` has a bit for each of its rows.
  __device__ __forceinline__ void close(uint32_t valid) {
    close_copies();
    valid_ = valid_ >> kTileRows | valid << (kTiles - 1) * kTileRows;
  }

  // The oldest tile, until it is closed again.
  __device__ __forceinline__ void wait() const { wait_for_copies<kTiles - 1>(); }
  __device__ __forceinline__ RowFragment<T, S> read(int i, int which, int r) const {
    RowFragment<T, S> row;
#pragma unroll
    for (int v = 0; v < kPieces; ++v) memcpy(row.words + 4 * v, own(i, which, r, v), 16);
    return row;
  }
  __device__ __forceinline__ bool valid(int r) const { return (valid_ >> r & 1) != 0; }

  // The place of a piece of the matrix. Its row r * groups + g is row r of the warp's group g.
  __device__ __forceinline__ uint4* piece(int i, int which, int row, int column) const {
    return tile(i, which) + row * (S::lanes * kPieces) + (column ^ row % 8);
  }

 private:
  __device__ __forceinline__ uint4* tile(int i, int which) const {
    return memory_ + (i % kTiles * 2 + which) * (kTileRows * kPieces * kWarp);
  }
  __device__ __forceinline__ uint4* own(int i, int which, int r, int v) const {
    const int lane = threadIdx.x % kWarp;
    if constexpr (matrix) {
      return piece(i, which, r * (kWarp / S::lanes) + lane / S::lanes,
                   v * S::lanes + lane % S::lanes);
    }
    return tile(i, which) + (r * kPieces + v) * kWarp + lane;
  }

  uint4* memory_;  // [kTiles, 2, kTileRows, kPieces, lanes], the warp's
  uint32_t valid_ = 0;
};

}  // namespace decoding::cuda
