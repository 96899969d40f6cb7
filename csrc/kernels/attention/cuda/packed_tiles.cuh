// The tiles of keys and values of packed_mma.cu in shared memory.
#pragma once

#include <cstdint>

#include "kernels/attention/cuda/attention.cuh"
#include "kernels/attention/cuda/packed.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace decoding::cuda {

template <int dim>
constexpr int kTileKeys = dim <= 128 ? 64 : 32;  // of a tile, as registers allow
constexpr int kWarps = 4, kThreads = kWarps * kWarp;

// Rows of `dim` elements in shared memory. They are 16 bytes apart from a multiple of 128, so that
// the 8 rows of a matrix lie in different banks.
template <typename T, int dim>
struct SharedRows {
  static constexpr int stride = dim + 8;  // elements
  uint32_t address;

  __device__ uint32_t at(int row, int column) const {
    return address + (row * stride + column) * sizeof(T);
  }
  __device__ SharedRows from(int row) const { return {at(row, 0)}; }

  // The lane's address for four 8x8 matrices that make a square of 16 from (row, column) on:
  // by_rows has the lower left one second, by_columns the upper right one.
  __device__ uint32_t by_rows(int row, int column) const {
    const int lane = threadIdx.x % kWarp;
    return at(row + lane % 16, column + lane / 16 * 8);
  }
  __device__ uint32_t by_columns(int row, int column) const {
    const int lane = threadIdx.x % kWarp;
    return at(row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8);
  }

  // Starts to copy `count` rows of a sentence from its row `begin` on; zeros from `length` and from
  // head_dim on.
  template <int count, typename Rows>
  __device__ __forceinline__ void request(const T* source, const Rows& rows, int begin, int length,
                                          int head_dim) const {
    constexpr int kPieces = dim / 8;  // of a row
    constexpr int kCopies = count * kPieces / kThreads;
    static_assert(count * kPieces % kThreads == 0);
    size_t offsets[kCopies];  // all are known before the first copy: numbers of pages come together
    bool inside[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int piece = threadIdx.x + i * kThreads, row = piece / kPieces, d = piece % kPieces * 8;
      inside[i] = begin + row < length && d < head_dim;
      offsets[i] = inside[i] ? rows.offset(begin + row) + d : 0;
    }
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int piece = threadIdx.x + i * kThreads, row = piece / kPieces, d = piece % kPieces * 8;
      copy_async(at(row, d), source + offsets[i], inside[i]);
    }
  }
};

// Bytes: twice a tile of keys and a tile of values.
template <typename T, int dim>
constexpr size_t kShared = 4 * kTileKeys<dim> * SharedRows<T, dim>::stride * sizeof(T);

// Tiles of keys and values of a sentence in shared memory. The queries come where no tile is before
// open() of the second one.
template <typename T, int dim, typename C>
struct KeyTiles {
  static constexpr int kKeys = kTileKeys<dim>;
  const SharedRows<T, dim> rows;

  __device__ explicit KeyTiles(char* memory) : rows{shared_address(memory)} {}

  __device__ SharedRows<T, dim> keys(int i) const { return rows.from(i % 2 * 2 * kKeys); }
  __device__ SharedRows<T, dim> values(int i) const { return rows.from(i % 2 * 2 * kKeys + kKeys); }
  __device__ SharedRows<T, dim> queries(int first) const { return keys(first + 1); }

  template <typename Keys>
  __device__ __forceinline__ void request(const Keys& source, int i, int head_dim) const {
    const auto copy = [&](const T* from, SharedRows<T, dim> to) {
      to.template request<kKeys>(from, source.rows, i * kKeys, source.length, head_dim);
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
template <typename T, int dim>
struct KeyTiles<T, dim, Float8> {
  static constexpr int kKeys = kTileKeys<dim>, kPieces = dim / 8;
  static constexpr int kWideBytes = 2 * kKeys * SharedRows<T, dim>::stride * sizeof(T);
  static constexpr int kNarrowBytes = 2 * kKeys * dim, kScaleBytes = 2 * kKeys * sizeof(float);
  static_assert(kWideBytes + 2 * (kNarrowBytes + kScaleBytes) <= kShared<T, dim>);
  char* const memory;
  const SharedRows<T, dim> rows;

  __device__ explicit KeyTiles(char* memory) : memory(memory), rows{shared_address(memory)} {}

  __device__ SharedRows<T, dim> keys(int) const { return rows; }
  __device__ SharedRows<T, dim> values(int) const { return rows.from(kKeys); }
  __device__ SharedRows<T, dim> queries(int) const { return rows; }

  template <typename Keys>
  __device__ __forceinline__ void request(const Keys& source, int i, int head_dim) const {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const Float8* from = which == 0 ? source.k : source.v;
#pragma unroll
      for (int piece = threadIdx.x; piece < kKeys * kPieces; piece += kThreads) {
        const int row = piece / kPieces, d = piece % kPieces * 8, key = i * kKeys + row;
        const bool inside = key < source.length && d < head_dim;
        const size_t offset = inside ? source.rows.offset(key) + d : 0;
        copy_few<8>(numbers(i, which, piece), from + offset, inside);
      }
    }
    for (int j = threadIdx.x; j < 2 * kKeys; j += kThreads) {
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
      for (int piece = threadIdx.x; piece < kKeys * kPieces; piece += kThreads) {
        const int row = piece / kPieces, d = piece % kPieces * 8;
        const int to = (which * kKeys + row) * SharedRows<T, dim>::stride + d;
        *reinterpret_cast<uint4*>(memory + to * sizeof(T)) =
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
