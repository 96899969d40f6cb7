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

  // A copy that the device can read, until so many bytes have been put that the stream must be
  // waited for.
  template <typename Item>
  const Item* put(const Item* items, size_t count, cudaStream_t stream) {
    static_assert(std::is_trivially_copyable_v<Item>);
    const size_t bytes = (count * sizeof(Item) + kAlign - 1) / kAlign * kAlign;
    CHECK(bytes <= memory_.bytes(), "a request of ", bytes, " bytes cannot be staged in ",
          memory_.bytes());
    if (used_ + bytes > memory_.bytes()) {
      CUDA_CHECK(cudaStreamSynchronize(stream));
      used_ = 0;
    }
    auto* to = static_cast<std::byte*>(memory_.data()) + used_;
    std::memcpy(to, items, count * sizeof(Item));
    used_ += bytes;
    return reinterpret_cast<const Item*>(to);
  }

  // `items` go to `to` with the next send().
  template <typename Item>
  void stage(Item* to, const Item* items, size_t count, cudaStream_t stream) {
    static_assert(sizeof(Item) % sizeof(int32_t) == 0);
    if (count == 0) return;
    const Item* staged = put(items, count, stream);
    pieces_.push_back({to, staged, static_cast<int64_t>(count * sizeof(Item) / sizeof(int32_t))});
  }

  void send(cuda::Stream& stream) {
    if (pieces_.empty()) return;
    const auto* pieces = put(pieces_.data(), pieces_.size(), stream.handle());
    cuda::scatter(stream, pieces, static_cast<int>(pieces_.size()));
    pieces_.clear();
  }

 private:
  static constexpr size_t kAlign = 16;

  cuda::PinnedMemory memory_;
  size_t used_ = 0;
  std::vector<cuda::Piece> pieces_;
};

}  // namespace decoding
