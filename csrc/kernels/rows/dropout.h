// y = 0 with probability p, else x / (1 - p); the gradient is the same of dy. What is dropped is
// not stored: it follows from a seed and the element's place e, on every device alike. Word e % 4
// of Philox's block e / 4 must reach p 2^32 to keep it.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/philox.h"
#include "kernels/stream.h"

namespace decoding {

struct Dropout {
  const int64_t* device_seed = nullptr;  // [1], where kernels run; null: `host_seed` is the seed
  int64_t host_seed = 0;
  uint64_t limit = 0;   // what a word must reach; 0: everything is kept
  double factor = 1.0;  // of what is kept

  static Dropout of(double probability, const int64_t* device_seed, int64_t host_seed) {
    return {device_seed, host_seed, static_cast<uint64_t>(std::llround(probability * 0x1p32)),
            probability < 1.0 ? 1.0 / (1.0 - probability) : 0.0};
  }
  DECODING_EVERYWHERE uint64_t seed() const {
    return static_cast<uint64_t>(device_seed != nullptr ? *device_seed : host_seed);
  }
};

// The words of four elements, of which the first one's place is 4 * block.
DECODING_EVERYWHERE inline void dropout_words(uint64_t seed, uint64_t block, uint32_t* words) {
  words[0] = static_cast<uint32_t>(block);
  words[1] = static_cast<uint32_t>(block >> 32);
  words[2] = words[3] = 0;
  philox_rounds(seed, words);
}

template <typename T>
struct DropoutParams {
  const T* x;  // [elements]
  T* y;        // [elements], may alias x
  Dropout dropout;
  int64_t elements;
};

template <typename T, cpu::Isa isa>
void dropout(cpu::Stream<isa>&, const DropoutParams<T>&);
template <typename T>
void dropout(cuda::Stream&, const DropoutParams<T>&);

}  // namespace decoding
