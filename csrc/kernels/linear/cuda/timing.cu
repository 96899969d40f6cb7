// Each algorithm is captured into a graph that runs it over several copies of the weight, each of
// which it reads once. Before each replay a kernel reads its way through more than the L2 cache
// holds: it reads because written lines would have to go back to memory while the clock runs.
#include <algorithm>
#include <limits>
#include <memory>

#include "core/types.h"
#include "kernels/cuda/check.h"
#include "kernels/linear/cuda/timing.h"

namespace decoding::cuda {
namespace {

constexpr size_t kMostCopies = 16;
constexpr size_t kCopyBytes = 256 << 20;  // of all copies, unless one has more
constexpr float kPromising = 1.5f;        // times the best first run
constexpr int kRuns = 7;                  // of what is promising
constexpr float kReplayed = 300;          // microseconds that a run of replays takes
constexpr int kMostReplays = 8;           // in it

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

// Microseconds from one point of a stream to another.
class Timer {
 public:
  explicit Timer(cudaStream_t stream) : stream_(stream) {
    create(begin_, [](auto* e) { return cudaEventCreate(e); });
    create(end_, [](auto* e) { return cudaEventCreate(e); });
  }

  void begin() const { CUDA_CHECK(cudaEventRecord(begin_.get(), stream_)); }
  float end() const {
    CUDA_CHECK(cudaEventRecord(end_.get(), stream_));
    CUDA_CHECK(cudaEventSynchronize(end_.get()));
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return milliseconds * 1e3f;
  }

 private:
  cudaStream_t stream_;
  Owned<cudaEvent_t, cudaEventDestroy> begin_, end_;
};

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
  const OwnStream stream_;
  const Timer timer_{stream_.handle()};
  Owned<void*, cudaFree> memory_;  // what is read in between, then all copies but the first
};

Bench::Bench(const Device& device, const void* weight, size_t bytes)
    : device_(device),
      weight_(weight),
      flush_(size_t(device.l2) * 2),
      stride_((bytes + kAlignment - 1) / kAlignment * kAlignment),
      copies_(std::clamp<size_t>(kCopyBytes / stride_, 1, kMostCopies)) {
  void* memory = nullptr;
  while (cudaMalloc(&memory, flush_ + (copies_ - 1) * stride_) != cudaSuccess) {
    cudaGetLastError();  // takes the error away
    if (copies_ == 1) return;
    copies_ /= 2;
  }
  memory_.reset(memory);
  CUDA_CHECK(cudaMemsetAsync(memory, 0, flush_, stream_.handle()));
  for (size_t i = 1; i < copies_; ++i) {
    CUDA_CHECK(cudaMemcpyAsync(const_cast<void*>(copy(i)), weight, bytes, cudaMemcpyDeviceToDevice,
                               stream_.handle()));
  }
}

std::optional<Graph> Bench::record(const std::vector<Launch>& launches) const {
  try {
    for (const Launch& launch : launches) launch(stream_.handle(), weight_);
    CUDA_CHECK(cudaStreamSynchronize(stream_.handle()));
  } catch (const Error&) {
    return {};
  }
  Graph graph = Graph::capture([&](cudaStream_t stream) {
    for (size_t i = 0; i < copies_; ++i) {
      for (const Launch& launch : launches) launch(stream, copy(i));
    }
  });
  graph.launch(stream_.handle());  // the first launch takes longer
  return graph;
}

float Bench::time(const Graph& graph) const {
  const cudaStream_t stream = stream_.handle();
  read_kernel<<<2 * device_.multiprocessors, 1024, 0, stream>>>(static_cast<uint4*>(memory_.get()),
                                                                flush_ / sizeof(uint4));
  CUDA_CHECK(cudaGetLastError());
  timer_.begin();
  graph.launch(stream);
  return timer_.end() / copies_;
}

// The middle one of several runs of each graph; 0 where there is none. In rounds over all rather
// than each by itself, so that clocks that change favour none. Slow ones run once.
template <typename Time>
std::vector<float> time_all(const std::vector<std::optional<Graph>>& graphs, Time&& time) {
  std::vector<float> times(graphs.size());
  float best = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < graphs.size(); ++i) {
    if (graphs[i]) best = std::min(best, times[i] = time(*graphs[i]));
  }
  std::vector<std::vector<float>> runs(graphs.size());
  for (int round = 0; round < kRuns; ++round) {
    for (size_t i = 0; i < graphs.size(); ++i) {
      if (graphs[i] && times[i] <= kPromising * best) runs[i].push_back(time(*graphs[i]));
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
  const auto replay = [&](const Graph& graph) { return bench.time(graph); };
  std::vector<float> times = time_all(graphs, replay);
  const float overhead = time_all(alone, replay).front();
  for (float& time : times) {
    if (time > 0) time = std::max(time - overhead, 0.1f);
  }
  return times;
}

std::vector<float> time_replays(cudaStream_t stream,
                                const std::vector<std::optional<Graph>>& graphs) {
  const Timer timer(stream);
  const auto time = [&](const Graph& graph, int replays) {
    timer.begin();
    for (int i = 0; i < replays; ++i) graph.launch(stream);
    return timer.end() / replays;
  };
  for (const auto& graph : graphs) graph->launch(stream);  // the first launch takes longer
  const float about = time(*graphs.front(), 1);
  const int replays = std::clamp(static_cast<int>(kReplayed / about), 1, kMostReplays);
  return time_all(graphs, [&](const Graph& graph) { return time(graph, replays); });
}

}  // namespace decoding::cuda
