// A CUDA stream, and the properties of its device that kernels need.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/stream.h"

namespace decoding::cuda {

class Matmul;  // kernels/linear/cuda/cublaslt/matmul.h

struct Device {
  int id;
  int capability;  // 80, 90, ...
  int code;        // the newest target that our code for it was compiled for
  int multiprocessors;
  int shared_memory;  // bytes that one block may have
  int l2;             // bytes
  char name[256];

  // Throws where there is no such device, or where we have no code for it.
  static Device of(int id);

  // Whether kernels have what came with Hopper: a start while the kernel before ends (programmatic
  // dependent launch), and clusters of blocks. Both sides need it: code for sm_80 that runs on a
  // newer device never waits.
  bool hopper() const { return code >= 90; }

  // Whether kernels have what came with Ada: instructions that convert e4m3.
  bool converts_float8() const { return code >= 89; }
};

class Stream {
 public:
  // warm_up: nothing is launched; products only find their fastest algorithm.
  Stream(cudaStream_t handle, const Device& device, Matmul& matmul, bool warm_up = false)
      : handle_(handle), device_(device), matmul_(matmul), warming_up_(warm_up) {}

  cudaStream_t handle() const { return handle_; }
  const Device& device() const { return device_; }
  Matmul& matmul() const { return matmul_; }
  bool warming_up() const { return warming_up_; }
  // Whether the order of a row's sums must not depend on how many other rows there are. The
  // session's products know.
  bool deterministic() const;

  // The same, on which nothing is launched.
  Stream warm_up() const { return {handle_, device_, matmul_, true}; }

  // The same, for kernels that must not begin before the one before has ended: they load early what
  // no kernel of an engine writes, but an optimizer does in training.
  Stream in_turn() const {
    Stream stream = *this;
    stream.overlaps_ = false;
    return stream;
  }
  bool overlaps() const { return overlaps_; }

 private:
  cudaStream_t handle_;
  const Device& device_;
  Matmul& matmul_;
  bool warming_up_;
  bool overlaps_ = true;
};

}  // namespace decoding::cuda
