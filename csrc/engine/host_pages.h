// Pages of keys and values in the host's memory, of requests that are swapped out: each one after
// the other, the stretches of a page (engine/model/cache.h) one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/model/cache.h"

namespace decoding {

// Memory: made for a number of bytes, which data() points to.
template <typename Memory>
class HostPages {
 public:
  HostPages() = default;
  explicit HostPages(size_t page_bytes) : page_bytes_(page_bytes) {}

  // Calls copy(there, host, bytes) for each stretch of a page of the cache, and of one of these.
  template <typename C, typename Copy>
  void each_stretch(const Cache<C>& cache, int32_t page, int32_t number, Copy&& copy) {
    std::byte* host = this->page(number);
    cache.each_stretch(page, [&](void* there, size_t bytes) {
      copy(there, host, bytes);
      host += bytes;
    });
  }

 private:
  static constexpr int kBlock = 64;  // pages that are made together

  // Made where there are not so many yet.
  std::byte* page(int32_t number) {
    const size_t block = number / kBlock;
    while (blocks_.size() <= block) blocks_.emplace_back(kBlock * page_bytes_);
    return static_cast<std::byte*>(blocks_[block].data()) + number % kBlock * page_bytes_;
  }

  size_t page_bytes_ = 0;
  std::vector<Memory> blocks_;
};

}  // namespace decoding
