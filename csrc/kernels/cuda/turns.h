// Split models of one process take turns on its GPU.
//
// A rank's step waits on its GPU for those of the others, so that what one process launches must
// not wait for what comes later in another. With one model it does not: all ranks launch the same
// things in the same order. With two, one rank may launch a step of the one first and another rank
// a step of the other; each then waits for what the driver holds back, on the one rank, until the
// GPU has ended what it runs, such as memory that is freed or code that is loaded. NCCL asks its
// users for one order of all communicators for the same reason. Here rank 0 gives it, which leads:
// it begins what one model does when that of the model before has ended.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>

namespace decoding::cuda {

class Turns {
 public:
  static Turns& of_process() {
    static Turns turns;
    return turns;
  }

  // Returns once what others have launched on their streams has ended. The turn lasts until the
  // lock is given back. stream: null where all has ended by then.
  [[nodiscard]] std::unique_lock<std::mutex> take(cudaStream_t stream) {
    std::unique_lock lock(mutex_);
    if (last_ != nullptr && last_ != stream)
      cudaStreamSynchronize(last_);  // its errors are its own
    last_ = stream;
    return lock;
  }

  // The stream goes.
  void forget(cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    if (last_ == stream) last_ = nullptr;
  }

 private:
  std::mutex mutex_;
  cudaStream_t last_ = nullptr;
};

}  // namespace decoding::cuda
