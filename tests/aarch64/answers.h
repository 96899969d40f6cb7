// What the kernel cases (cases.h) have in common: numbers that are the same on every machine, and
// hashes of what kernels make of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "core/types.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/team.h"

namespace decoding {

// A number of T between -1 and 1; `word`: 32 random bits. Conversions are exact.
template <typename T>
T number_of(uint32_t word) {
  const float value = static_cast<float>(static_cast<int32_t>(word) >> 8) * 0x1p-23f;
  if constexpr (std::is_same_v<T, BFloat16>) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return {static_cast<uint16_t>(bits >> 16)};
  } else if constexpr (std::is_same_v<T, Float16>) {
    const uint32_t exponent = 8 + (word >> 10) % 7;  // 2^-7 to 2^-1
    return {static_cast<uint16_t>((word >> 16 & 0x8000) | exponent << 10 | (word & 0x3ff))};
  } else {
    return value;
  }
}

template <typename T>
bool is_nan(const T& value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  if constexpr (std::is_same_v<T, BFloat16>) return (value.bits & 0x7fff) > 0x7f80;
  if constexpr (std::is_same_v<T, Float16>) return (value.bits & 0x7fff) > 0x7c00;
  return false;
}

// FNV-1a of the bytes; NaN is NaN, whose bits differ between processors.
template <typename T>
uint64_t hash_of(const std::vector<T>& numbers) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const T& number : numbers) {
    uint8_t bytes[sizeof(T)];
    std::memcpy(bytes, &number, sizeof bytes);
    if (is_nan(number)) std::memset(bytes, 0xff, sizeof bytes);
    for (const uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  }
  return hash;
}

// Prints a line: the instruction set, the case, the hash.
template <typename T>
void print_answer(const char* set, const std::string& name, const std::vector<T>& numbers) {
  std::printf("%s\t%s\t%016llx\n", set, name.c_str(),
              static_cast<unsigned long long>(hash_of(numbers)));
}

// An instruction set whose kernels run, each in a team of two threads.
template <cpu::Isa isa>
class Machine {
 public:
  Machine(const char* name, cpu::Features features) : name_(name), features_(features) {}

  static constexpr int kThreads = 2;

  bool rounds_to_bfloat16() const { return features_.bf16; }

  // Calls kernel(stream) on every thread.
  template <typename Kernel>
  void run(Kernel&& kernel) {
    team_.run([&](int rank) {
      cpu::Stream<isa> stream(team_, rank, features_);
      kernel(stream);
    });
  }

  template <typename T>
  void answer(const std::string& name, const std::vector<T>& numbers) const {
    print_answer(name_, name, numbers);
  }

  // The same for every instruction set, as long as all draw alike (splitmix64, Steele et al. 2014).
  uint32_t word() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return static_cast<uint32_t>((z ^ z >> 31) >> 32);
  }
  template <typename T = float>
  std::vector<T> numbers(size_t count) {
    std::vector<T> found(count);
    for (T& number : found) number = number_of<T>(word());
    return found;
  }
  std::vector<float> numbers(size_t count, float scale) {
    std::vector<float> found = numbers(count);
    for (float& number : found) number *= scale;
    return found;
  }
  template <typename T = int32_t>
  std::vector<T> ids(size_t count, uint32_t below) {
    std::vector<T> found(count);
    for (T& id : found) id = static_cast<T>(word() % below);
    return found;
  }

 private:
  const char* name_;
  const cpu::Features features_;
  cpu::Team team_{kThreads};
  uint64_t state_ = 0;
};

}  // namespace decoding
