// The rows that a team reads next, on their way into shared memory. A thread asks for its own
// pieces some rows ahead and is the only one that reads them: there is no barrier, and what is
// under way takes no registers.
#pragma once

#include <cstdint>

#include "kernels/cuda/tensor_core.cuh"

namespace decoding::cuda {

// pieces: of 16 bytes, that a thread has of a row of each of `inputs` tensors.
template <int pieces>
class RowRing {
 public:
  static constexpr int kRows = 3;  // under way or in use

  // Bytes of shared memory.
  static size_t bytes(int inputs, int threads) {
    return sizeof(uint4) * kRows * inputs * pieces * threads;
  }

  __device__ __forceinline__ RowRing(uint4* memory, int inputs)
      : memory_(memory + threadIdx.x), inputs_(inputs) {}

  __device__ __forceinline__ void ask(int slot, int input, int piece, const void* from) {
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(at(slot, input, piece)));
    copy_async(to, from, true);
  }
  // All that was asked for since the last call is one row, also where that is nothing.
  __device__ __forceinline__ void close_row() { close_copies(); }
  // The row that was closed kRows calls ago is there.
  __device__ __forceinline__ void wait_for_row() { wait_for_copies<kRows - 1>(); }

  __device__ __forceinline__ uint4 read(int slot, int input, int piece) const {
    return *at(slot, input, piece);
  }

 private:
  __device__ __forceinline__ uint4* at(int slot, int input, int piece) const {
    return memory_ + ((slot * inputs_ + input) * pieces + piece) * static_cast<int>(blockDim.x);
  }

  uint4* memory_;  // [kRows, inputs, pieces, threads], from this thread's on
  int inputs_;
};

}  // namespace decoding::cuda
