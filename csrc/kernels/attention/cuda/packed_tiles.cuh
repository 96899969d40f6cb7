// The tiles of queries, keys and values of packed_mma.cu in shared memory.
#pragma once

#include <cstdint>

#include "kernels/attention/cuda/packed.cuh"
#include "kernels/attention/cuda/packed_rows.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace decoding::cuda {

// The lane's address for four 8x8 matrices that make a square of 16 from (row, column) on: by_rows
// has the lower left one second, by_columns the upper right one.
template <typename Rows>
__device__ uint32_t by_rows(const Rows& rows, int row, int column) {
  const int lane = threadIdx.x % kWarp;
  return rows.at(row + lane % 16, column + lane / 16 * 8);
}
template <typename Rows>
__device__ uint32_t by_columns(const Rows& rows, int row, int column) {
  const int lane = threadIdx.x % kWarp;
  return rows.at(row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8);
}

// P: Mma of packed_mma.cu. Each warp has kSquares squares of 16 queries.
template <typename P, typename T>
using RowsOf = PaddedRows<T, P::kDim>;
template <typename P>
constexpr int kThreads = P::kWarps * kWarp;
template <typename P>
constexpr int kQueries = 16 * P::kSquares * P::kWarps;  // of a block

// Bytes of two tiles of keys and two of values.
template <typename P, typename T>
constexpr int kTileBytes = 4 * P::kKeys * RowsOf<P, T>::kBytes;

// Tiles of keys and values of a sentence in shared memory. The queries come where no tile is before
// open() of the second one.
template <typename P, typename T, typename C>
struct KeyTiles {
  static constexpr int kKeys = P::kKeys;
  const RowsOf<P, T> rows;

  __device__ explicit KeyTiles(char* memory) : rows{shared_address(memory)} {}

  __device__ RowsOf<P, T> keys(int i) const { return rows.from(i % 2 * 2 * kKeys); }
  __device__ RowsOf<P, T> values(int i) const { return rows.from(i % 2 * 2 * kKeys + kKeys); }
  __device__ RowsOf<P, T> queries(int first) const { return keys(first + 1); }

  template <typename Keys>
  __device__ __forceinline__ void request(const Keys& source, int i, int head_dim) const {
    const auto copy = [&](const T* from, RowsOf<P, T> to) {
      request_rows<kKeys, P::kDim, kThreads<P>>(to, threadIdx.x, from, source.rows, i * kKeys,
                                                source.length, head_dim);
    };
    copy(source.k, keys(i));
    copy(source.v, values(i));
    close_copies();
  }

  // Before a tile is read that has arrived for all threads, which are done with the one before.
  __device__ void open(int) const {}
};

// Of e4m3, two tiles of which and their scales take less than one of T: one is widened, while the
// next is on its way.
template <typename P, typename T>
struct KeyTiles<P, T, Float8> {
  using Rows = RowsOf<P, T>;
  static constexpr int kKeys = P::kKeys, kPieces = P::kDim / 8;
  static constexpr int kWideBytes = 2 * kKeys * Rows::kBytes;
  static constexpr int kNarrowBytes = 2 * kKeys * P::kDim, kScaleBytes = 2 * kKeys * sizeof(float);
  static_assert(kWideBytes + 2 * (kNarrowBytes + kScaleBytes) <= kTileBytes<P, T>);
  char* const memory;
  const Rows rows;

  __device__ explicit KeyTiles(char* memory) : memory(memory), rows{shared_address(memory)} {}

  __device__ Rows keys(int) const { return rows; }
  __device__ Rows values(int) const { return rows.from(kKeys); }
  __device__ Rows queries(int) const { return rows; }

  template <typename Keys>
  __device__ __forceinline__ void request(const Keys& source, int i, int head_dim) const {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const Float8* from = which == 0 ? source.k : source.v;
#pragma unroll
      for (int piece = threadIdx.x; piece < kKeys * kPieces; piece += kThreads<P>) {
        const int row = piece / kPieces, d = piece % kPieces * 8, key = i * kKeys + row;
        const bool inside = key < source.length && d < head_dim;
        const size_t offset = inside ? source.rows.offset(key) + d : 0;
        copy_few<8>(numbers(i, which, piece), from + offset, inside);
      }
    }
    for (int j = threadIdx.x; j < 2 * kKeys; j += kThreads<P>) {
      const int which = j / kKeys, row = j % kKeys, key = i * kKeys + row;
      const bool inside = key < source.length;
      const float* from = which == 0 ? source.k_scales : source.v_scales;
      copy_few<4>(scale(i, which, row), from + (inside ? source.rows.in_head(key) : 0), inside);
    }
    close_copies();
  }

  __device__ __forceinline__ void open(int i) const {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
#pragma unroll 4
      for (int piece = threadIdx.x; piece < kKeys * kPieces; piece += kThreads<P>) {
        const int row = piece / kPieces, d = piece % kPieces * 8;
        *reinterpret_cast<uint4*>(memory + (which * kKeys + row) * Rows::kBytes + d * sizeof(T)) =
            from_float8<T>(*numbers(i, which, piece), *scale(i, which, row));
      }
    }
    __syncthreads();
  }

 private:
  __device__ uint2* numbers(int i, int which, int piece) const {
    return reinterpret_cast<uint2*>(memory + kWideBytes + i % 2 * kNarrowBytes) +
           which * kKeys * kPieces + piece;
  }
  __device__ float* scale(int i, int which, int row) const {
    return reinterpret_cast<float*>(memory + kWideBytes + 2 * kNarrowBytes + i % 2 * kScaleBytes) +
           which * kKeys + row;
  }
};

}  // namespace decoding::cuda
