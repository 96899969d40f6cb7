#include "kernels/cuda/collective.h"

#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "core/thread.h"

namespace decoding::cuda {
namespace {

constexpr std::chrono::milliseconds kPoll{20};  // between two checks whether a rank is lost
constexpr int64_t kBlock = int64_t{2} << 20;    // smaller memory may share an IPC handle

int made_current(int device) {
  CUDA_CHECK(cudaSetDevice(device));
  return device;
}

}  // namespace

Collective::Collective(std::shared_ptr<Ranks> ranks, int device, int64_t part_bytes)
    : ranks_(std::move(ranks)),
      device_(made_current(device)),
      own_(kCounts + part_bytes, device),
      host_memory_(2 * sizeof(uint32_t)),
      host_(static_cast<std::atomic<uint32_t>*>(host_memory_.data())) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  CHECK(ranks_->size() <= kMostRanks, "GPUs of one machine can be at most ", kMostRanks, " ranks");
  CHECK(part_bytes >= 2 * kSmallPart && part_bytes % 16 == 0, "part_bytes must be at least ",
        2 * kSmallPart);
  std::memset(host_memory_.data(), 0, host_memory_.bytes());
  CUDA_CHECK(cudaMemset(own_.data(), 0, kCounts));
  auto* words = static_cast<uint32_t*>(host_memory_.data());
  peers_ = {.memory = {},
            .counts = reinterpret_cast<uint32_t*>(own_.data()),
            .stop = words,
            .given_up = words + 1,
            .part_bytes = part_bytes,
            .rank = rank(),
            .size = size()};
}

Collective::~Collective() {
  if (watch_.joinable()) {
    set_stop(true);  // no kernel waits for ever
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    wakes_.notify_all();
    watch_.join();
  }
  last_use_.emplace(device_, std::nothrow);
  cudaDeviceSynchronize();
  for (void* memory : opened_) cudaIpcCloseMemHandle(memory);
}

int64_t Collective::rank_bytes() const {
  return (shared_bytes(size(), part_bytes()) + kBlock - 1) / kBlock * kBlock;
}

std::string Collective::share() {
  const UseDevice use(device_);
  shared_ = std::make_unique<DeviceMemory>(rank_bytes(), device_);
  CUDA_CHECK(cudaMemset(shared_->data(), 0, shared_->bytes()));
  CUDA_CHECK(cudaDeviceSynchronize());
  cudaIpcMemHandle_t handle;
  const cudaError_t error = cudaIpcGetMemHandle(&handle, shared_->data());
  if (error != cudaSuccess) cudaGetLastError();  // else the next launch would report it
  CHECK(error == cudaSuccess, "no CUDA IPC on cuda:", device_,
        " (cudaIpcGetMemHandle: ", cudaGetErrorString(error),
        "), which some containers and virtual machines forbid");
  return {reinterpret_cast<const char*>(&handle), sizeof handle};
}

void Collective::open(const std::vector<std::string>& handles) {
  CHECK(static_cast<int>(handles.size()) == size() && shared_ && !watch_.joinable(),
        "open() needs share(), and the handles of all ranks, once");
  const UseDevice use(device_);
  peers_.memory[rank()] = shared_->data();
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    cudaIpcMemHandle_t handle;
    CHECK(handles[other].size() == sizeof handle, "the handle of rank ", other, " is no handle");
    std::memcpy(&handle, handles[other].data(), sizeof handle);
    void* memory = nullptr;
    const cudaError_t error = cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) cudaGetLastError();
    CHECK(error == cudaSuccess, "rank ", rank(), " on cuda:", device_,
          " cannot open the GPU memory of rank ", other,
          " (cudaIpcOpenMemHandle: ", cudaGetErrorString(error),
          "): that needs peer access between their GPUs (`nvidia-smi ",
          "topo -p2p r`), which every rank must see, and a sandbox that allows CUDA IPC");
    opened_.push_back(memory);
    peers_.memory[other] = static_cast<std::byte*>(memory);
  }
  begin_watch();
}

void Collective::open_on_host(const std::string& path) {
  CHECK(!shared_ && !watch_.joinable(), "open_on_host() is in place of share() and open()");
  const UseDevice use(device_);
  on_host_ = std::make_unique<MappedFile>(path, static_cast<size_t>(host_bytes()));
  for (int rank = 0; rank < size(); ++rank) {
    peers_.memory[rank] = on_host_->on_device() + rank * rank_bytes();
  }
  begin_watch();
}

void Collective::begin_watch() {
  watch_ = start_thread([this] { watch(); });
}

void Collective::enter() {
  bool torn;
  {
    const std::lock_guard lock(mutex_);
    torn = std::exchange(in_call_, true) || given_up();
  }
  wakes_.notify_all();
  if (ranks_->max_of(torn) > 0) align_numbers();
}

void Collective::leave() {
  const std::lock_guard lock(mutex_);
  in_call_ = false;
}

void Collective::align_numbers() {
  const UseDevice use(device_);
  set_stop(true);
  CUDA_CHECK(cudaDeviceSynchronize());
  uint32_t number = 0;
  CUDA_CHECK(cudaMemcpy(&number, peers_.counts, sizeof number, cudaMemcpyDeviceToHost));
  number = static_cast<uint32_t>(ranks_->max_of(number));  // and now no rank exchanges anything
  const std::vector<uint32_t> counts(kMostBlocks, number);
  CUDA_CHECK(cudaMemcpy(peers_.counts, counts.data(), kCounts, cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaDeviceSynchronize());
  host_[1].store(0, std::memory_order_release);
  set_stop(false);
}

void Collective::check() {
  if (!given_up()) return;
  // No barrier would say who: a rank that leaves may have given up an exchange, and reach it.
  ranks_->check_torn();
  throw Error("the exchange between ranks was given up: make the call again");
}

void Collective::set_stop(bool stop) {
  const std::lock_guard lock(mutex_);
  stopped_ = stop;
  host_[0].store(stop, std::memory_order_release);
}

// What is stopped stays so until the next call begins.
void Collective::watch() {
  std::unique_lock lock(mutex_);
  while (true) {
    wakes_.wait(lock, [&] { return closed_ || (in_call_ && !stopped_); });
    if (closed_) return;
    if (ranks_->is_torn()) {
      stopped_ = true;
      host_[0].store(1, std::memory_order_release);
    } else {
      wakes_.wait_for(lock, kPoll);
    }
  }
}

}  // namespace decoding::cuda
