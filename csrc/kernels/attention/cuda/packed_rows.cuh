// Rows of queries, keys and values in shared memory, and their way there.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace decoding::cuda {

// Rows of `dim` elements in shared memory. They are 16 bytes apart from a multiple of 128, so that
// the 8 rows of a matrix lie in different banks.
template <typename T, int dim>
struct PaddedRows {
  static constexpr int kBytes = (dim + 8) * sizeof(T);  // of a row
  static constexpr int kPeriod = 1;                     // rows after which places repeat
  uint32_t address;

  __device__ uint32_t at(int row, int column) const {
    return address + row * kBytes + column * sizeof(T);
  }
  // From a multiple of 8 on.
  __device__ PaddedRows from(int row) const { return {at(row, 0)}; }
};

// Rows as wgmma reads them (wgmma.cuh): lines of 64 elements, eight rows of which make 1024 bytes;
// where a row is longer, its next 64 elements are in the next 1024.
template <typename T, int dim>
struct SwizzledRows {
  static constexpr int kLines = dim / 64;  // of a row
  static constexpr int kBytes = kLines * 64 * sizeof(T);
  static constexpr int kPeriod = 8, kEightBytes = kPeriod * kBytes;
  uint32_t address;

  __device__ uint32_t at(int row, int column) const {
    const int chunk = column % 64 / 8 ^ row % 8;
    return address + row / 8 * kEightBytes + column / 64 * 1024 + row % 8 * 128 + chunk * 16 +
           column % 8 * sizeof(T);
  }
  __device__ SwizzledRows from(int row) const { return {address + row * kBytes}; }
  // The instruction's descriptor of the rows from `row` on, a multiple of 8, and of the columns
  // from `column` on, a multiple of 16.
  __device__ uint64_t tile(int row, int column) const {
    return wgmma_tile<kEightBytes>(address) +
           ((row / 8 * kEightBytes + column / 64 * 1024 + column % 64 / 16 * 32) >> 4);
  }
};

// Threads that share a row: one for each of its pieces of 16 bytes, or two, or a few too many.
template <int dim, int threads, int period>
constexpr int kAcross = std::min<int>(std::bit_ceil(dim / 8u), threads / period);
// Copies of a thread whose places are known before the first begins: numbers of pages come
// together.
template <int copies>
constexpr int kTogether = std::gcd(copies, 8);

// Has `threads` threads, of which this is one, start to copy `count` rows of a sentence from its
// row `begin` on; zeros from `length` and from head_dim on. A thread has the same pieces of every
// kStep-th row, so that little is to be computed for a copy.
template <int count, int dim, int threads, typename To, typename T, typename Rows>
__device__ __forceinline__ void request_rows(const To& to, int thread, const T* source,
                                             const Rows& rows, int begin, int length,
                                             int head_dim) {
  constexpr int kThreads = kAcross<dim, threads, To::kPeriod>;
  constexpr int kStep = threads / kThreads, kBatch = kTogether<count / kStep>;
  static_assert(count % kStep == 0 && kStep % To::kPeriod == 0);
  const int first = thread / kThreads;
#pragma unroll
  for (int d = thread % kThreads * 8; d < dim; d += kThreads * 8) {
    const bool inside = d < head_dim;
    const T* column = source + (inside ? d : 0);
    uint32_t place = to.at(first, d);
#pragma unroll 1
    for (int row = first; row < count; row += kBatch * kStep) {
      const T* from[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        from[i] = column + rows.offset(min(begin + row + i * kStep, length - 1));
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i, place += kStep * To::kBytes) {
        copy_async(place, from[i], inside && begin + row + i * kStep < length);
      }
    }
  }
}

}  // namespace decoding::cuda
