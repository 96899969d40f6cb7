// Each algorithm is captured into a graph that runs it over several copies of the weight, each of
// which it reads once. Before each replay a kernel reads its way through more than the L2 cache
// holds: it reads because written lines would have to go back to memory while the clock runs.
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "core/types.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/resources.h"
#include "kernels/linear/cuda/timing.h"

namespace decoding::cuda {
namespace {

constexpr size_t kMostCopies = 16;
constexpr size_t kCopyBytes = 256 << 20;  // of all copies, unless one has more
constexpr float kPromising = 1.5f;        // times the best first run
constexpr int kRuns = 7;                  // of what is promising

// Reads all of it; writes only where the unlikely happens, which the compiler cannot know.
__global__ void read_kernel(uint4* data, size_t count) {
  uint32_t bits = 0;
  const size_t stride = size_t(gridDim.x) * blockDim.x;
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint4 v = data[i];
    bits |= v.x | v.y | v.z | v.w;
  }
  if (bits == 0x9E3779B9u) data[0].x = bits;
}

template <typename T, cudaError_t (*destroy)(T)>
struct Destroy {
  using pointer = T;
  void operator()(T handle) const { destroy(handle); }
};
template <typename T, cudaError_t (*destroy)(T)>
using Owned = std::unique_ptr<T, Destroy<T, destroy>>;

template <typename T, cudaError_t (*destroy)(T), typename Create>
void create(Owned<T, destroy>& owned, Create&& function) {
  T handle{};
  CUDA_CHECK(function(&handle));
  owned.reset(handle);
}

class Bench {
 public:
  Bench(const Device& device, const void* weight, size_t bytes);

  // False where there is no memory for it.
  bool ready() const { return memory_ != nullptr; }
  // All of them, once for each copy of the weight. None where one throws.
  std::optional<Graph> record(const std::vector<Launch>& launches) const;
  // Microseconds of a replay, for one copy.
  float time(const Graph& graph) const;

 private:
  const void* copy(size_t i) const {
    return i == 0 ? weight_ : static_cast<char*>(memory_.get()) + flush_ + (i - 1) * stride_;
  }

  const Device& device_;
  const void* weight_;
  size_t flush_, stride_, copies_;
  Owned<cudaStream_t, cudaStreamDestroy> stream_;
  Owned<cudaEvent_t, cudaEventDestroy> begin_, end_;
  Owned<void*, cudaFree> memory_;  // what is read in between, then all copies but the first
};

Bench::Bench(const Device& device, const void* weight, size_t bytes)
    : device_(device),
      weight_(weight),
      flush_(size_t(device.l2) * 2),
      stride_((bytes + kAlignment - 1) / kAlignment * kAlignment),
      copies_(std::clamp<size_t>(kCopyBytes / stride_, 1, kMostCopies)) {
  create(stream_, [](auto* s) { return cudaStreamCreateWithFlags(s, cudaStreamNonBlocking); });
  create(begin_, [](auto* e) { return cudaEventCreate(e); });
  create(end_, [](auto* e) { return cudaEventCreate(e); });
  void* memory = nullptr;
  while (cudaMalloc(&memory, flush_ + (copies_ - 1) * stride_) != cudaSuccess) {
    cudaGetLastError();  // takes the error away
    if (copies_ == 1) return;
    copies_ /= 2;
  }
  memory_.reset(memory);
  CUDA_CHECK(cudaMemsetAsync(memory, 0, flush_, stream_.get()));
  for (size_t i = 1; i < copies_; ++i) {
    CUDA_CHECK(cudaMemcpyAsync(const_cast<void*>(copy(i)), weight, bytes, cudaMemcpyDeviceToDevice,
                               stream_.get()));
  }
}

std::optional<Graph> Bench::record(const std::vector<Launch>& launches) const {
  try {
    for (const Launch& launch : launches) launch(stream_.get(), weight_);
    CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
  } catch (const Error&) {
    return {};
  }
  Graph graph = Graph::capture([&](cudaStream_t stream) {
    for (size_t i = 0; i < copies_; ++i) {
      for (const Launch& launch : launches) launch(stream, copy(i));
    }
  });
  graph.launch(stream_.get());  // the first launch takes longer
  return graph;
}

float Bench::time(const Graph& graph) const {
  const cudaStream_t stream = stream_.get();
  read_kernel<<<2 * device_.multiprocessors, 1024, 0, stream>>>(static_cast<uint4*>(memory_.get()),
                                                                flush_ / sizeof(uint4));
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaEventRecord(begin_.get(), stream));
  graph.launch(stream);
  CUDA_CHECK(cudaEventRecord(end_.get(), stream));
  CUDA_CHECK(cudaEventSynchronize(end_.get()));
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
  return milliseconds * 1e3f / copies_;
}

// The middle one of several runs of each graph; 0 where there is none. In rounds over all rather
// than each by itself, so that clocks that change favour none. Slow ones run once.
std::vector<float> time_all(const Bench& bench, const std::vector<std::optional<Graph>>& graphs) {
  std::vector<float> times(graphs.size());
  float best = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < graphs.size(); ++i) {
    if (graphs[i]) best = std::min(best, times[i] = bench.time(*graphs[i]));
  }
  std::vector<std::vector<float>> runs(graphs.size());
  for (int round = 0; round < kRuns; ++round) {
    for (size_t i = 0; i < graphs.size(); ++i) {
      if (graphs[i] && times[i] <= kPromising * best) runs[i].push_back(bench.time(*graphs[i]));
    }
  }
  for (size_t i = 0; i < graphs.size(); ++i) {
    if (runs[i].empty()) continue;
    std::ranges::nth_element(runs[i], runs[i].begin() + kRuns / 2);
    times[i] = runs[i][kRuns / 2];
  }
  return times;
}

}  // namespace

std::vector<float> time_cold(const Device& device, const void* weight, size_t bytes,
                             const Launch& write_x, const std::vector<Launch>& launches) {
  const Bench bench(device, weight, bytes);
  if (!bench.ready()) return {};
  std::vector<std::optional<Graph>> graphs, alone;
  for (const Launch& launch : launches) graphs.push_back(bench.record({write_x, launch}));
  alone.push_back(bench.record({write_x}));
  std::vector<float> times = time_all(bench, graphs);
  const float overhead = time_all(bench, alone).front();
  for (float& time : times) {
    if (time > 0) time = std::max(time - overhead, 0.1f);
  }
  return times;
}

}  // namespace decoding::cuda
