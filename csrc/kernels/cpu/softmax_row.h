// Softmax of a row that is all there.
#pragma once

#include <algorithm>

#include "kernels/cpu/simd.h"

namespace decoding::cpu {
namespace {

// Columns that are added up apart, so that errors of long sums stay small.
constexpr int kSoftmaxBlock = 512;

// y = softmax(scale * x + bias) of one row; y may alias x, bias may be null.
void softmax_row(const float* x, const float* bias, float* y, int cols, float scale) {
  Floats top = broadcast(-__builtin_inff());
  for_vectors(cols, [&](int c, auto... count) {
    const Floats shift = bias != nullptr ? load(bias + c, count...) : Floats{};
    Floats z = fma(scale, load(x + c, count...), shift);
    store(y + c, z, count...);
    ((z = lane_ids() < count ? z : broadcast(-__builtin_inff())), ...);
    top = max(z, top);
  });
  // A row of -inf takes exp(-inf - -inf) and becomes NaN; so does one with NaN or +inf.
  const Floats highest = broadcast(max_of(top));
  Floats sum = {};
  for (int begin = 0; begin < cols; begin += kSoftmaxBlock) {
    Floats part = {};
    float* block = y + begin;
    for_vectors(std::min(kSoftmaxBlock, cols - begin), [&](int c, auto... count) {
      Floats weight = exp(load(block + c, count...) - highest);
      store(block + c, weight, count...);
      ((weight = lane_ids() < count ? weight : Floats{}), ...);
      part += weight;
    });
    sum += part;
  }
  const Floats factor = broadcast(1.0f / sum_of(sum));
  for_vectors(
      cols, [&](int c, auto... count) { store(y + c, load(y + c, count...) * factor, count...); });
}

}  // namespace
}  // namespace decoding::cpu
