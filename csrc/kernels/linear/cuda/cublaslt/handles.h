// cuBLASLt's handles, which sessions have one after the other. None is destroyed: that waits for
// the whole device, so that captures of other threads begin anew, and NVIDIA advises against it.
#pragma once

#include "kernels/linear/cuda/cublaslt/cublaslt.h"

namespace decoding::cuda::cublaslt {

// A handle of the device, which must be the current one.
class OwnHandle {
 public:
  explicit OwnHandle(int device);
  ~OwnHandle();
  OwnHandle(const OwnHandle&) = delete;
  OwnHandle& operator=(const OwnHandle&) = delete;

  Handle get() const { return handle_; }

 private:
  const int device_;
  Handle handle_ = nullptr;
};

}  // namespace decoding::cuda::cublaslt
