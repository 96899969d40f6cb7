// Tiles of keys and values on their way from memory to a warp.
#pragma once

#include <cstdint>

#include "kernels/attention/cuda/decode/decode.cuh"
#include "kernels/attention/cuda/float8.cuh"
#include "kernels/attention/pages.h"

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
  __device__ __forceinline__ void request(int i, int r, const PagePool<T>& pool, uint32_t offset,
                                          uint32_t, int dim, bool valid) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const T* from = (which == 0 ? pool.k : pool.v) + static_cast<size_t>(offset) * S::width;
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

// As a Ring with `matrix`, whose tiles come as e4m3 with their scales. The oldest one is widened to
// T in a place of its own, where the tensor cores find it.
template <typename T, typename S>
class Float8Ring {
 public:
  static constexpr int kTiles = 2;
  static constexpr int kPieces = S::vectors;  // of 8 numbers, that a lane has of a row
  // For a lane: the wide tile, those that come, and the scales of these.
  static constexpr int kWideBytes = 2 * kTileRows * kPieces * 16;
  static constexpr int kNarrowBytes = kTiles * 2 * kTileRows * kPieces * 8;
  static constexpr int kBytes = kWideBytes + kNarrowBytes + 16;

  __device__ explicit Float8Ring(uint4* memory)
      : memory_(memory + threadIdx.x / kWarp * (kBytes * kWarp / 16)) {}

  // As Ring's. cell: the row's in k and in v. The scale of key r is copied by lane r of those that
  // hold the row, and that of value r by the lane kTileRows after it.
  __device__ __forceinline__ void request(int i, int r, const PagePool<Float8>& pool,
                                          uint32_t offset, uint32_t cell, int dim, bool valid) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const Float8* from = (which == 0 ? pool.k : pool.v) + static_cast<size_t>(offset) * S::width;
#pragma unroll
      for (int v = 0; v < S::vectors; ++v) {
        copy_few<8>(own(i, which, r, v), from + S::at(v), valid && S::at(v) < dim);
      }
    }
    const int lane = threadIdx.x % S::lanes, which = lane / kTileRows;
    if (which < 2 && lane % kTileRows == r) {
      const float* from = which == 0 ? pool.k_scales : pool.v_scales;
      copy_few<4>(scale(i, which, row(r)), from + cell, valid);
    }
  }
  // Ends a tile.
  __device__ __forceinline__ void close(uint32_t) { close_copies(); }
  // The oldest tile, until it is closed again.
  __device__ __forceinline__ void wait() const { wait_for_copies<kTiles - 1>(); }

  // After wait() and the warp's agreement that all have waited, and done with the tile before.
  __device__ __forceinline__ void widen(int i) const {
#pragma unroll 1
    for (int which = 0; which < 2; ++which) {
#pragma unroll
      for (int r = 0; r < kTileRows; ++r) {
        const float scale = *this->scale(i, which, row(r));
#pragma unroll
        for (int v = 0; v < kPieces; ++v) {
          *piece(i, which, row(r), v * S::lanes + threadIdx.x % S::lanes) =
              from_float8<T>(*own(i, which, r, v), scale);
        }
      }
    }
    __syncwarp();
  }

  // Of the tile that was widened last.
  __device__ __forceinline__ uint4* piece(int, int which, int row, int column) const {
    return memory_ + which * (kTileRows * kPieces * kWarp) + row * (S::lanes * kPieces) +
           (column ^ row % 8);
  }

 private:
  static constexpr int kGroups = kWarp / S::lanes, kRows = kTileRows * kGroups;  // of a tile
  static_assert(S::width == 8 && S::lanes >= 2 * kTileRows);
  static_assert(kTiles * 2 * kRows * sizeof(float) <= 16 * kWarp);

  // The row of the matrix that is row r of the lane's group.
  __device__ static int row(int r) { return r * kGroups + threadIdx.x % kWarp / S::lanes; }

  __device__ __forceinline__ uint2* own(int i, int which, int r, int v) const {
    auto* const first = reinterpret_cast<uint2*>(memory_ + kWideBytes * kWarp / 16);
    return first + (((i % kTiles * 2 + which) * kTileRows + r) * kPieces + v) * kWarp +
           threadIdx.x % kWarp;
  }
  __device__ __forceinline__ float* scale(int i, int which, int row) const {
    auto* const first =
        reinterpret_cast<float*>(memory_ + (kWideBytes + kNarrowBytes) * kWarp / 16);
    return first + (i % kTiles * 2 + which) * kRows + row;
  }

  uint4* memory_;  // the warp's
};

}  // namespace decoding::cuda
