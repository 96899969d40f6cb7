// Copies tiles of x and W to shared memory, for the kernels that multiply them there: in lines of
// 64 inputs, 128 bytes for each row of the tile, whose 16-byte chunks are permuted by the row
// (chunk ^ row % 8), so that eight rows lie in eight different groups of banks. Lines of a
// quantized weight have 64 bytes: two rows lie side by side there, and pairs of rows permute the
// chunks.
#pragma once

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/linear/linear.h"

namespace decoding::cuda {

constexpr int kSlice = 64;  // inputs in a line
constexpr int kChunk = 8;   // elements of y, x and the residual in 16 bytes
template <typename T>
constexpr int kLineBytesOf = kSlice * sizeof(T);
constexpr int kLineBytes = kLineBytesOf<uint16_t>;

// Where a chunk of a row's line lies in it.
template <typename T>
__device__ __forceinline__ int chunk_place(int chunk, int row) {
  return sizeof(T) == 1 ? chunk ^ row / 2 % 4 : chunk ^ row % 8;
}

// Elements from row to row of W.
template <typename W>
__device__ __forceinline__ int weight_stride(const LinearWeight& weight) {
  return sizeof(W) == 1 ? quantized_stride(weight.inputs) : weight.inputs;
}

// The way of kCount rows of a matrix [rows, inputs] to shared memory, slice by slice, in the order
// of the slices. A thread takes the same chunk of every kStride-th row.
template <typename T, int kCount, int kThreads>
class Source {
 public:
  // inputs: elements from row to row.
  __device__ __forceinline__ Source(const T* from, int first, int rows, int inputs, int k)
      : k_(k + threadIdx.x % kLine * kWidth),
        inputs_(inputs),
        rows_(rows - first - static_cast<int>(threadIdx.x / kLine)),
        from_(from + static_cast<int64_t>(first + threadIdx.x / kLine) * inputs + k_),
        row_step_(static_cast<int64_t>(kStride) * inputs),
        to_(threadIdx.x / kLine * kLineBytesOf<T> +
            chunk_place<T>(threadIdx.x % kLine, threadIdx.x / kLine) * 16) {}

  // The next slice.
  __device__ __forceinline__ void request_next(const char (&tile)[kCount * kLineBytesOf<T>]) {
    if (kCount < kStride && threadIdx.x >= kCount * kLine) return;  // more threads than chunks
    const uint32_t to = shared_address(tile) + to_;
    const T* from = from_;
#pragma unroll
    for (int i = 0; i < (kCount + kStride - 1) / kStride; ++i, from += row_step_) {
      // A line of 64 bytes is half a line of the cache.
      copy_async<sizeof(T) == 1>(to + i * kStride * kLineBytesOf<T>, from,
                                 i * kStride < rows_ && k_ < inputs_);
    }
    from_ += kSlice;
    k_ += kSlice;
  }

 private:
  static constexpr int kWidth = 16 / sizeof(T), kLine = kSlice / kWidth;  // of a chunk, chunks
  static constexpr int kStride = kThreads / kLine;
  static_assert((kCount % kStride == 0 || kCount < kStride) && kStride % 8 == 0);

  int k_;
  const int inputs_, rows_;
  const T* from_;
  const int64_t row_step_;
  const uint32_t to_;
};

// In y, of `columns`, and in the residual.
template <typename T>
__device__ __forceinline__ int64_t place(const LinearParams<T>& p, int columns, int row,
                                         int column) {
  return static_cast<int64_t>(row) * (p.stride > 0 ? p.stride : columns) + column;
}
template <typename T>
__device__ __forceinline__ int64_t place(const LinearParams<T>& p, int row, int column) {
  return place(p, p.weight.outputs, row, column);
}

}  // namespace decoding::cuda
