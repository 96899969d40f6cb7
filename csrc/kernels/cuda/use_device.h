// The device that a thread's calls of CUDA are for.
#pragma once

#include <new>

struct CUctx_st;  // of cuda.h

namespace decoding::cuda {

// Makes a device the current one of the thread while it lives. The thread then has the context that
// it had before, or none: cudaSetDevice() would open the device before, which takes some hundred MB
// of its memory, where nobody has used it yet. What has no current device opens device 0, so
// destructors need one, too.
class UseDevice {
 public:
  explicit UseDevice(int device);
  // For destructors: what follows fails by itself where the GPU is lost.
  UseDevice(int device, std::nothrow_t) noexcept;
  ~UseDevice();
  UseDevice(const UseDevice&) = delete;
  UseDevice& operator=(const UseDevice&) = delete;

 private:
  CUctx_st* const before_;
};

}  // namespace decoding::cuda
