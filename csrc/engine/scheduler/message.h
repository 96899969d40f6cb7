// What rank 0 sends to the other ranks, as bytes: all of them are processes of one program on one
// machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "core/check.h"

namespace decoding {

class MessageWriter {
 public:
  void clear() { bytes_.clear(); }
  std::vector<std::byte>& bytes() { return bytes_; }

  template <typename T>
  void put(const T& value) {
    put_all(std::span(&value, 1));
  }
  // With their number.
  template <typename T>
  void put_list(std::span<const T> values) {
    put(static_cast<int64_t>(values.size()));
    put_all(values);
  }
  template <typename T>
  void put_list(const std::vector<T>& values) {
    put_list(std::span<const T>(values));
  }

 private:
  template <typename T>
  void put_all(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (values.empty()) return;
    const size_t size = bytes_.size();
    // Not an insert, of whose copies g++ 12 warns in vain.
    bytes_.resize(size + values.size_bytes());
    std::memcpy(bytes_.data() + size, values.data(), values.size_bytes());
  }

  std::vector<std::byte> bytes_;
};

class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    T value;
    take(&value, 1);
    return value;
  }
  template <typename T>
  std::vector<T> get_list() {
    std::vector<T> values(get<int64_t>());
    take(values.data(), values.size());
    return values;
  }

 private:
  template <typename T>
  void take(T* to, size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    const size_t size = count * sizeof(T);
    CHECK(size <= bytes_.size(), "a message of rank 0 ends early");
    if (size > 0) std::memcpy(to, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
  }

  std::span<const std::byte> bytes_;
};

}  // namespace decoding
