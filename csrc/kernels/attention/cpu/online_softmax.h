// Softmax while the scores still come in, block by block (Milakov and Gimelshein 2018): what has
// been added up is rescaled whenever a larger score turns up.
#pragma once

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

}  // namespace
}  // namespace decoding::cpu
