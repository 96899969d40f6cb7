// CUDA's resources of a session, each released with its owner.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "kernels/cuda/check.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/use_device.h"

namespace decoding::cuda {

// How many GPUs there are. Throws where CUDA finds none.
int device_count();

// Memory of a device. Throws std::bad_alloc where there is none left.
class DeviceMemory {
 public:
  DeviceMemory(size_t bytes, int device) : data_(nullptr, Free{device}), bytes_(bytes) {
    const UseDevice use(device);
    void* data = nullptr;
    cudaError_t error = has_fault() ? cudaErrorMemoryAllocation : cudaSuccess;
    if (error == cudaSuccess && bytes > 0) error = cudaMalloc(&data, bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // else the next launch would report it
      throw std::bad_alloc();
    }
    CHECK(error == cudaSuccess, "CUDA: ", cudaGetErrorString(error), advice(error));
    data_.reset(static_cast<std::byte*>(data));
  }
  std::byte* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    int device;
    void operator()(std::byte* data) const {
      const UseDevice use(device, std::nothrow);
      cudaFree(data);  // waits for who uses it
    }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_;
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

// A stream that waits for no other.
class OwnStream {
 public:
  OwnStream() { CUDA_CHECK(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking)); }
  ~OwnStream() {
    if (handle_ != nullptr) cudaStreamDestroy(handle_);
  }
  OwnStream(OwnStream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  OwnStream& operator=(OwnStream&&) = delete;

  cudaStream_t handle() const { return handle_; }

 private:
  cudaStream_t handle_ = nullptr;
};

class Event {
 public:
  Event() { CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) { CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void wait() const { CUDA_CHECK(cudaEventSynchronize(event_)); }
  // What is launched on the stream from now on comes after what was recorded.
  void hold(cudaStream_t stream) const { CUDA_CHECK(cudaStreamWaitEvent(stream, event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

// What is launched on `later` from now on comes after all that was launched on `earlier`.
inline void order(const Stream& earlier, const Stream& later) {
  if (earlier.handle() == later.handle()) return;
  Event event;
  event.record(earlier.handle());
  event.hold(later.handle());
}

// Work that was recorded once and is launched again and again.
class Graph {
 public:
  // record(stream) launches the work on a stream that only records it. It does so again where
  // another thread has waited for the whole device meanwhile (torch.cuda.synchronize()): CUDA then
  // drops what has been recorded.
  template <typename Record>
  static Graph capture(Record&& record) {
    const OwnStream stream;
    for (int again = kAgain;; --again) {
      CUDA_CHECK(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal));
      std::exception_ptr failed;
      try {
        record(stream.handle());
      } catch (...) {
        failed = std::current_exception();
      }
      cudaGraph_t ended = nullptr;
      const cudaError_t error = cudaStreamEndCapture(stream.handle(), &ended);
      const Recorded recorded(ended);
      if (error == cudaErrorStreamCaptureInvalidated && again > 0) {
        cudaGetLastError();  // else the next launch would report it
        continue;
      }
      if (failed) std::rethrow_exception(failed);
      CUDA_CHECK(error);
      return Graph(recorded.get());
    }
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
  static constexpr int kAgain = 20;  // times that a capture begins anew

  struct Destroy {
    void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
  };
  using Recorded = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, Destroy>;

  explicit Graph(cudaGraph_t recorded) {
    CUDA_CHECK(cudaGraphGetNodes(recorded, nullptr, &nodes_));
    CUDA_CHECK(cudaGraphInstantiate(&executable_, recorded, 0));
  }

  cudaGraphExec_t executable_ = nullptr;
  size_t nodes_ = 0;
};

}  // namespace decoding::cuda
