// bfloat16 in memory, float32 in registers: the loads and stores of simd.h for such numbers.
#pragma once

#include "core/types.h"
#include "kernels/cpu/simd.h"

namespace decoding::cpu {
namespace {

using Halves [[gnu::vector_size(2 * kLanes)]] = uint16_t;

inline Floats widen(Halves x) { return bits(__builtin_convertvector(x, Ints) << 16); }

// To the nearest, of two to the even one; NaN stays NaN.
inline Halves narrow(Floats x) {
  const Ints whole = bits(x);
  const Ints rounded = whole + 0x7fff + ((whole >> 16) & 1);
  return __builtin_convertvector((x == x ? rounded : whole | 0x400000) >> 16, Halves);
}

inline Floats load(const BFloat16* from) {
  Halves value;
  __builtin_memcpy(&value, from, sizeof value);
  return widen(value);
}

inline void store(BFloat16* to, Floats value) {
  const Halves rounded = narrow(value);
  __builtin_memcpy(to, &rounded, sizeof rounded);
}

inline Floats load(const BFloat16* from, int count) {
  Halves value = {};
  __builtin_memcpy(&value, from, count * sizeof(BFloat16));
  return widen(value);
}

inline void store(BFloat16* to, Floats value, int count) {
  const Halves rounded = narrow(value);
  __builtin_memcpy(to, &rounded, count * sizeof(BFloat16));
}

}  // namespace
}  // namespace decoding::cpu
