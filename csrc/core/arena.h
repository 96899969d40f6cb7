// Memory as a table. The same code runs twice: first it measures, then it binds addresses inside
// one block that the caller owns.
//
//   Arena arena;                     // measures; take() returns null
//   Arena arena(pool, bytes);        // binds
//   x = arena.take<float>("x", {rows, hidden});
//   arena.reuse([&] { ... });        // what is taken inside ends with the block; blocks side by
//                                    // side share their bytes, so they come last
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/types.h"

namespace decoding {

// One line of the memory plan.
struct Buffer {
  std::string name;
  std::string type;  // of an element
  std::vector<int64_t> shape;
  size_t offset, bytes;       // in the pool; bytes without the padding to kAlignment
  std::vector<int> lifetime;  // the reuse blocks around it, outermost first: two buffers are in
                              // use together where one's lifetime begins with the other's
};

template <typename T>
const char* type_name();  // specialised beside each element type

class Arena {
 public:
  Arena() = default;
  Arena(void* pool, size_t bytes) : pool_(static_cast<std::byte*>(pool)), capacity_(bytes) {
    CHECK(reinterpret_cast<uintptr_t>(pool) % kAlignment == 0, "the pool must be aligned to ",
          kAlignment, " bytes");
  }

  template <typename T>
  T* take(const std::string& given, std::vector<int64_t> shape) {
    const std::string name = prefix_ + given;
    CHECK(names_.insert(name).second, "two buffers are named ", name);
    CHECK(!ended_.count(lifetime_), name, " would share bytes with the reuse block before it");
    size_t bytes = sizeof(T);
    for (int64_t size : shape) bytes *= static_cast<size_t>(size);
    const size_t offset = top_;
    top_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    peak_ = top_ > peak_ ? top_ : peak_;
    CHECK(pool_ == nullptr || top_ <= capacity_, name, " needs ", bytes, " bytes at ", offset,
          ", the pool has ", capacity_);
    buffers_.push_back({name, type_name<T>(), std::move(shape), offset, bytes, lifetime_});
    return pool_ == nullptr ? nullptr : reinterpret_cast<T*>(pool_ + offset);
  }

  // Names of what is taken inside begin so, where the same buffers are taken several times.
  template <typename Take>
  void prefixed(const std::string& prefix, Take&& take) {
    prefix_ = prefix;
    take();
    prefix_.clear();
  }

  template <typename Take>
  void reuse(Take&& take) {
    const size_t bottom = top_;
    lifetime_.push_back(blocks_++);
    take();
    lifetime_.pop_back();
    ended_.insert(lifetime_);
    top_ = bottom;
  }

  size_t bytes() const { return peak_; }
  const std::vector<Buffer>& buffers() const { return buffers_; }

 private:
  std::byte* pool_ = nullptr;
  size_t capacity_ = 0, top_ = 0, peak_ = 0;
  int blocks_ = 0;
  std::string prefix_;
  std::vector<int> lifetime_;         // of what is taken now
  std::set<std::vector<int>> ended_;  // lifetimes in which a reuse block has ended
  std::vector<Buffer> buffers_;
  std::set<std::string> names_;
};

}  // namespace decoding
