// Every type of numbers that training has on the CPU, in one vocabulary: an operator's text on
// Lanes<T> serves float, double, Float16 and BFloat16. load() widens, store() rounds.
#pragma once

#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/doubles.h"
#include "kernels/cpu/float16.h"
#include "kernels/cpu/simd.h"

namespace decoding::cpu {
namespace {

// kLanes numbers of T as they are computed with, each a Real<T>.
template <typename T>
using Lanes = std::conditional_t<std::is_same_v<T, double>, Doubles, Floats>;

// One number.
template <typename T>
inline Real<T> load_one(const T* from) {
  return load(from, 1)[0];
}
template <typename T>
inline void store_one(T* to, Real<T> value) {
  store(to, broadcast(value), 1);
}

// `value` in the first `count` lanes and `rest` after them; all of `value` without a count, as
// for_vectors() hands it on.
inline Floats first_lanes(Floats value, Floats) { return value; }
inline Doubles first_lanes(Doubles value, Doubles) { return value; }
inline Floats first_lanes(Floats value, Floats rest, int count) {
  return lane_ids() < count ? value : rest;
}
inline Doubles first_lanes(Doubles value, Doubles rest, int count) {
  return __builtin_convertvector(lane_ids() < count, Longs) ? value : rest;
}

}  // namespace
}  // namespace decoding::cpu

// Defines an operator's overload for each of them: DECODING_FOR_ELEMENTS(INSTANTIATE).
#define DECODING_FOR_ELEMENTS(instantiate)                                \
  instantiate(float) instantiate(double) instantiate(::decoding::Float16) \
      instantiate(::decoding::BFloat16)
