// Philox4x32-10: a random number generator without state (Salmon et al., "Parallel random numbers:
// as easy as 1, 2, 3", 2011). The same key and counter give the same four words everywhere.
#pragma once

#include <array>
#include <cstdint>

#include "core/types.h"

namespace decoding {

// The counter's four words become the random ones.
DECODING_EVERYWHERE inline void philox_rounds(uint64_t key, uint32_t* counter) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter[0] = static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0;
    counter[1] = static_cast<uint32_t>(p1);
    counter[2] = static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1;
    counter[3] = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

inline std::array<uint32_t, 4> philox(uint64_t key, std::array<uint32_t, 4> counter) {
  philox_rounds(key, counter.data());
  return counter;
}

}  // namespace decoding
