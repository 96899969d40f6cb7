// Dropout of what a thread has in registers: dropout.h.
#pragma once

#include "kernels/cuda/vector.cuh"
#include "kernels/rows/dropout.h"

namespace decoding::cuda {

// place: of x[0]; a multiple of 4 but for single numbers.
template <int pack>
__device__ __forceinline__ void drop(const Dropout& dropout, int64_t place, float (&x)[pack]) {
  if (dropout.limit == 0) return;
  const uint64_t seed = dropout.seed();
  const auto kept = static_cast<float>(dropout.factor);
#pragma unroll
  for (int first = 0; first < pack; first += 4) {
    uint32_t words[4];
    dropout_words(seed, static_cast<uint64_t>(place + first) / 4, words);
    if constexpr (pack == 1) {
      const int lane = place % 4;
      words[0] = lane == 0 ? words[0] : lane == 1 ? words[1] : lane == 2 ? words[2] : words[3];
    }
#pragma unroll
    for (int i = 0; i < 4 && i < pack; ++i) {
      x[first + i] *= words[i] >= dropout.limit ? kept : 0.0f;
    }
  }
}

}  // namespace decoding::cuda
