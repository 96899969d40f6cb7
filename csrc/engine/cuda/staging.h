// Memory of the host from which a GPU fetches small things, many in one launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/resources.h"
#include "kernels/cuda/scatter.h"
#include "kernels/cuda/stream.h"

namespace decoding {

class CudaStaging {
 public:
  CudaStaging() = default;
  explicit CudaStaging(size_t bytes) : memory_(bytes) {}

  // A copy that the device can read.
  template <typename Item>
  const Item* put(const Item* items, size_t count) {
    static_assert(std::is_trivially_copyable_v<Item>);
    const size_t bytes = (count * sizeof(Item) + kAlign - 1) / kAlign * kAlign;
    CHECK(used_ + bytes <= memory_.bytes(), "a request is too large to be staged");
    auto* to = static_cast<std::byte*>(memory_.data()) + used_;
    std::memcpy(to, items, count * sizeof(Item));
    used_ += bytes;
    return reinterpret_cast<const Item*>(to);
  }

  // `items` go to `to` with the next send().
  template <typename Item>
  void stage(Item* to, const Item* items, size_t count) {
    static_assert(sizeof(Item) % sizeof(int32_t) == 0);
    if (count == 0) return;
    const Item* staged = put(items, count);
    pieces_.push_back({to, staged, static_cast<int64_t>(count * sizeof(Item) / sizeof(int32_t))});
  }

  template <typename Item>
  void stage(const Item* to, const std::vector<Item>& items) {
    stage(const_cast<Item*>(to), items.data(), items.size());
  }

  // Memory that the device can reach, such as its own or this host's, is copied to other such
  // memory with the next send().
  void copy(void* to, const void* from, size_t bytes) {
    pieces_.push_back({to, from, static_cast<int64_t>(bytes / sizeof(int32_t))});
  }

  void send(cuda::Stream& stream) {
    if (pieces_.empty()) return;
    const auto* pieces = put(pieces_.data(), pieces_.size());
    cuda::scatter(stream, pieces, static_cast<int>(pieces_.size()));
    pieces_.clear();
  }

  // Makes room for more. Where little is left, all that there is goes, and it waits for the device
  // to have read it.
  void renew(cuda::Stream& stream) {
    if (2 * used_ < memory_.bytes()) return;
    send(stream);
    CUDA_CHECK(cudaStreamSynchronize(stream.handle()));
    used_ = 0;
  }

 private:
  static constexpr size_t kAlign = 16;

  cuda::PinnedMemory memory_;
  size_t used_ = 0;
  std::vector<cuda::Piece> pieces_;
};

}  // namespace decoding
