// Two bytes in memory, float32 in registers: the loads and stores of simd.h for bfloat16, and with
// float16.h for IEEE halves.
#pragma once

#include <type_traits>

#include "core/types.h"
#include "kernels/cpu/simd.h"

namespace decoding::cpu {
namespace {

using Halves [[gnu::vector_size(2 * kLanes)]] = uint16_t;

// Both types of two bytes are loaded and stored alike, but for these two.
template <typename T>
Floats widen(Halves x);
template <typename T>
Halves narrow(Floats x);

template <typename T>
constexpr bool kTwoBytes = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

template <>
inline Floats widen<BFloat16>(Halves x) {
  return bits(__builtin_convertvector(x, Ints) << 16);
}

// To the nearest, of two to the even one; NaN stays NaN.
template <>
inline Halves narrow<BFloat16>(Floats x) {
  const Ints whole = bits(x);
  const Ints rounded = whole + 0x7fff + ((whole >> 16) & 1);
  return __builtin_convertvector((x == x ? rounded : whole | 0x400000) >> 16, Halves);
}

template <typename T>
  requires kTwoBytes<T>
inline Floats load(const T* from) {
  Halves value;
  __builtin_memcpy(&value, from, sizeof value);
  return widen<T>(value);
}

template <typename T>
  requires kTwoBytes<T>
inline Floats load(const T* from, int count) {
  Halves value = {};
  __builtin_memcpy(&value, from, count * sizeof(T));
  return widen<T>(value);
}

template <typename T>
  requires kTwoBytes<T>
inline void store(T* to, Floats value) {
  const Halves rounded = narrow<T>(value);
  __builtin_memcpy(to, &rounded, sizeof rounded);
}

template <typename T>
  requires kTwoBytes<T>
inline void store(T* to, Floats value, int count) {
  const Halves rounded = narrow<T>(value);
  __builtin_memcpy(to, &rounded, count * sizeof(T));
}

}  // namespace
}  // namespace decoding::cpu
