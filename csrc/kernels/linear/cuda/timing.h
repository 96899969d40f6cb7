// How long each of several algorithms of a product takes in a step: inside a graph, with weights
// that come from memory and not from the L2 cache, and after a kernel that has just written x.
// Warm weights pick the wrong kernels, and so do launches of one kernel right after the other, of
// which each loads its weights while the one before still computes.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/resources.h"
#include "kernels/cuda/stream.h"

namespace decoding::cuda {

// While it lives, this thread may allocate and wait although another one captures a graph: torch's
// captures would fail otherwise.
class BesideCaptures {
 public:
  BesideCaptures() { CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // swapped with the thread's own
};

// Launches one product with that weight. Throws Error where it cannot.
using Launch = std::function<void(cudaStream_t, const void* weight)>;

// Microseconds of each, 0 where it threw; empty where there is no memory to time in. weight: the
// `bytes` that every launch reads. write_x: runs before each; its own time does not count. Call it
// BesideCaptures.
std::vector<float> time_cold(const Device& device, const void* weight, size_t bytes,
                             const Launch& write_x, const std::vector<Launch>& launches);

// Microseconds of a replay of each, which finds in the caches what the one before left there.
std::vector<float> time_replays(cudaStream_t stream,
                                const std::vector<std::optional<Graph>>& graphs);

}  // namespace decoding::cuda
