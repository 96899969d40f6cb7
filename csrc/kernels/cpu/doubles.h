// The words of simd.h for double, as many lanes of it as of float. Its speed does not matter:
// double is for checking gradients.
#pragma once

#include "kernels/cpu/simd.h"

namespace decoding::cpu {
namespace {

using Doubles [[gnu::vector_size(8 * kLanes)]] = double;
using Longs [[gnu::vector_size(8 * kLanes)]] = int64_t;

inline Doubles broadcast(double value) { return value - Doubles{}; }

inline Doubles load(const double* from) {
  Doubles value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

inline Doubles load(const double* from, int count) {
  Doubles value = {};
  __builtin_memcpy(&value, from, count * sizeof(double));
  return value;
}

inline void store(double* to, Doubles value) { __builtin_memcpy(to, &value, sizeof value); }
inline void store(double* to, Doubles value, int count) {
  __builtin_memcpy(to, &value, count * sizeof(double));
}

inline Doubles fma(Doubles a, Doubles b, Doubles c) { return a * b + c; }

// Where one operand is NaN, the second one comes out.
inline Doubles max(Doubles a, Doubles b) { return a > b ? a : b; }
inline Doubles min(Doubles a, Doubles b) { return a < b ? a : b; }

inline Doubles exp(Doubles x) {
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = __builtin_exp(x[lane]);
  return x;
}
inline Doubles exp_not_above_0(Doubles x) { return exp(x); }

inline double sum_of(Doubles x) {
  double sum = 0.0;
  for (int lane = 0; lane < kLanes; ++lane) sum += x[lane];
  return sum;
}

inline double max_of(Doubles x) {
  double top = x[0];
  for (int lane = 1; lane < kLanes; ++lane) top = top > x[lane] ? top : x[lane];
  return top;
}

}  // namespace
}  // namespace decoding::cpu
