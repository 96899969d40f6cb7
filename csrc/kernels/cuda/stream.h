// A CUDA stream, and what kernels need to know of the device behind it.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/stream.h"

namespace decoding::cuda {

class Matmul;  // kernels/cuda/matmul.h

struct Device {
  int id;
  int major, minor;  // compute capability
  int multiprocessors;
  int shared_memory;  // bytes that one block may have
  int l2;             // bytes
  char name[256];

  // Throws where there is no such device, or where we have no code for it.
  static Device of(int id);
};

class Stream {
 public:
  // rehearsal: nothing is launched; products only find out which algorithm suits them.
  Stream(cudaStream_t handle, const Device& device, Matmul& matmul, bool rehearsal = false)
      : handle_(handle), device_(device), matmul_(matmul), rehearsal_(rehearsal) {}

  cudaStream_t handle() const { return handle_; }
  const Device& device() const { return device_; }
  Matmul& matmul() const { return matmul_; }
  bool rehearsal() const { return rehearsal_; }
  // Whether a kernel may start while the one before it ends (programmatic dependent launch).
  bool overlaps() const { return device_.major >= 9; }

 private:
  cudaStream_t handle_;
  const Device& device_;
  Matmul& matmul_;
  bool rehearsal_;
};

}  // namespace decoding::cuda
