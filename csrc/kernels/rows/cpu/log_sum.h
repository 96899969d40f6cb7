// The log-sum-exp of a row, which grows block by block: what has been added up is rescaled whenever
// a larger number turns up, so each block is read from memory once.
#pragma once

#include <algorithm>

#include "kernels/cpu/elements.h"

namespace decoding::cpu {
namespace {

constexpr int kBlock = 512;  // columns, added up apart so that errors of long sums stay small

template <typename R>
struct LogSum {
  R peak;  // the largest number of the row
  R sum;   // of exp(x - peak)
};

// The largest of a block's columns; NaN is passed over.
template <typename T>
Real<T> largest(const T* x, int cols) {
  const Lanes<T> nothing = broadcast(Real<T>(-__builtin_inf()));
  Lanes<T> top = nothing;
  for_vectors(cols, [&](int c, auto... count) {
    top = max(first_lanes(load(x + c, count...), nothing, count...), top);
  });
  return max_of(top);
}

template <typename T>
Lanes<T> sum_of_exponentials(const T* x, int cols, Real<T> peak) {
  Lanes<T> sum = {};
  for_vectors(cols, [&](int c, auto... count) {
    sum += first_lanes(exp(load(x + c, count...) - peak), Lanes<T>{}, count...);
  });
  return sum;
}

// also(begin, count) is called for each block while it is in cache.
template <typename T, typename Also>
LogSum<Real<T>> log_sum(const T* x, int cols, Also&& also) {
  Real<T> peak = -__builtin_inf();
  Lanes<T> sum = {};
  for (int begin = 0; begin < cols; begin += kBlock) {
    const int count = std::min(kBlock, cols - begin);
    const Real<T> top = largest(x + begin, count);
    if (top > peak) {
      sum *= exp(broadcast(peak - top));
      peak = top;
    }
    // -inf - -inf would be NaN; relative to any other peak it weighs the nothing that it should.
    sum += sum_of_exponentials(x + begin, count, peak == -__builtin_inf() ? Real<T>(0) : peak);
    also(begin, count);
  }
  return {peak, sum_of(sum)};
}

}  // namespace
}  // namespace decoding::cpu
