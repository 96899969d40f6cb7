// CUDA's resources of a session, each released with its owner.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "kernels/cuda/check.h"

namespace decoding::cuda {

// Makes a device the current one while it lives.
class UseDevice {
 public:
  explicit UseDevice(int device) {
    CUDA_CHECK(cudaGetDevice(&before_));
    CUDA_CHECK(cudaSetDevice(device));
  }
  ~UseDevice() { cudaSetDevice(before_); }
  UseDevice(const UseDevice&) = delete;
  UseDevice& operator=(const UseDevice&) = delete;

 private:
  int before_ = 0;
};

// Memory of the host that a GPU can copy from and write to.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(size_t bytes) : bytes_(bytes) {
    void* data = nullptr;
    if (bytes > 0) CUDA_CHECK(cudaHostAlloc(&data, bytes, cudaHostAllocMapped));
    data_.reset(data);
  }
  void* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* data) const { cudaFreeHost(data); }
  };
  std::unique_ptr<void, Free> data_;
  size_t bytes_ = 0;
};

class Event {
 public:
  Event() { CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) { CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void wait() const { CUDA_CHECK(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

// Work that was recorded once and is launched again and again.
class Graph {
 public:
  // record(stream) launches the work on a stream that only records it.
  template <typename Record>
  static Graph capture(Record&& record) {
    cudaStream_t stream = nullptr;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaGraph_t recorded = nullptr;
    Graph graph;
    try {
      CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      record(stream);
      CUDA_CHECK(cudaStreamEndCapture(stream, &recorded));
      CUDA_CHECK(cudaGraphGetNodes(recorded, nullptr, &graph.nodes_));
      CUDA_CHECK(cudaGraphInstantiate(&graph.executable_, recorded, 0));
    } catch (...) {
      if (recorded == nullptr) cudaStreamEndCapture(stream, &recorded);
      if (recorded != nullptr) cudaGraphDestroy(recorded);
      cudaStreamDestroy(stream);
      throw;
    }
    cudaGraphDestroy(recorded);
    cudaStreamDestroy(stream);
    return graph;
  }

  Graph(Graph&& other) noexcept { *this = std::move(other); }
  Graph& operator=(Graph&& other) noexcept {
    std::swap(executable_, other.executable_);
    std::swap(nodes_, other.nodes_);
    return *this;
  }
  ~Graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  }

  void launch(cudaStream_t stream) const { CUDA_CHECK(cudaGraphLaunch(executable_, stream)); }
  int nodes() const { return static_cast<int>(nodes_); }

 private:
  Graph() = default;

  cudaGraphExec_t executable_ = nullptr;
  size_t nodes_ = 0;
};

}  // namespace decoding::cuda
