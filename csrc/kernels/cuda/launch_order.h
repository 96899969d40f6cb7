// One launch order for all split models of a process.
//
// A rank's step waits on its GPU for those of the other ranks, so that what one process launches
// must not wait for what comes later in another. With one model it does not: all ranks launch the
// same kernels in the same order. With two, one rank may launch a step of the first model while
// another rank launches one of the second; each then waits for the other's, which the driver holds
// back until the GPU is idle, as it may to free memory or to load code. NCCL asks for one launch
// order of all communicators for the same reason. Here rank 0, which leads, begins the work of one
// model when that of the model before has ended.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>

namespace decoding::cuda {

class LaunchOrder {
 public:
  static LaunchOrder& of_process() {
    static LaunchOrder order;
    return order;
  }

  // Returns when the work that others have launched has ended; none launches more while the lock is
  // held. stream: where the holder launches; null if its work ends before it unlocks.
  [[nodiscard]] std::unique_lock<std::mutex> lock(cudaStream_t stream) {
    std::unique_lock lock(mutex_);
    if (last_ != nullptr && last_ != stream)
      cudaStreamSynchronize(last_);  // its errors are its own
    last_ = stream;
    return lock;
  }

  // The stream is about to be destroyed.
  void forget(cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    if (last_ == stream) last_ = nullptr;
  }

 private:
  std::mutex mutex_;
  cudaStream_t last_ = nullptr;
};

}  // namespace decoding::cuda
