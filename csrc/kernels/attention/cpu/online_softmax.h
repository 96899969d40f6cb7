// Softmax while the scores still come in, block by block (Milakov and Gimelshein 2018): what has
// been added up is rescaled whenever a larger score turns up.
#pragma once

#include <cstddef>

#include "kernels/cpu/simd.h"

namespace decoding::cpu {
namespace {

struct OnlineSoftmax {
  float maximum = -__builtin_inff();
  Floats sum = {};  // of the weights so far, lane by lane

  // Turns `count` scores, a whole number of vectors, into weights relative to the maximum so far,
  // and returns the factor for all that was added up with earlier weights. Scores of -inf weigh
  // nothing.
  float weigh(float* scores, int count) {
    Floats top = load(scores);
    for (int i = kLanes; i < count; i += kLanes) top = max(load(scores + i), top);
    const float before = maximum;
    const float highest = max_of(top);
    if (!(highest <= before)) maximum = highest;
    const float rescale = before == maximum ? 1.0f : exp(broadcast(before - maximum))[0];
    for (int i = 0; i < count; i += kLanes) {
      const Floats weight = exp(load(scores + i) - maximum);
      store(scores + i, weight);
      sum = i == 0 ? fma(rescale, sum, weight) : sum + weight;
    }
    return rescale;
  }

  // Zero where there was nothing to attend to.
  float normaliser() const {
    const float total = sum_of(sum);
    return total == 0.0f ? 0.0f : 1.0f / total;
  }
};

// The same for kLanes queries, one in each lane.
struct OnlineSoftmaxLanes {
  Floats maximum = broadcast(-__builtin_inff());
  Floats sum = {};  // of the weights so far

  // Looks at `count` rows of scores, `stride` elements apart, and returns the factor for all that
  // was added up with earlier weights.
  Floats raise(const float* scores, size_t stride, int count) {
    const Floats before = maximum;
    Floats other = maximum;  // two chains take half as long as one
    for (int k = 0; k + 1 < count; k += 2) {
      maximum = max(load(scores + k * stride), maximum);
      other = max(load(scores + (k + 1) * stride), other);
    }
    if (count % 2 != 0) maximum = max(load(scores + (count - 1) * stride), maximum);
    maximum = max(maximum, other);
    return before == maximum ? broadcast(1.0f) : exp_not_above_0(before - base());
  }

  // Turns them into weights; rescale: what raise() has returned.
  void weigh(float* scores, size_t stride, int count, Floats rescale) {
    Floats total = {};
    for (int k = 0; k < count; ++k) {
      const Floats weight = exp_not_above_0(load(scores + k * stride) - base());
      store(scores + k * stride, weight);
      total += weight;
    }
    sum = fma(rescale, sum, total);
  }

  // -inf must not meet itself in lanes that have seen nothing yet.
  Floats base() const { return maximum == -__builtin_inff() ? Floats{} : maximum; }

  Floats normaliser() const { return sum == 0.0f ? Floats{} : 1.0f / sum; }
};

}  // namespace
}  // namespace decoding::cpu
