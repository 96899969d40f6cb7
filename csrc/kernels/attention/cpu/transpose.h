// The transpose of a square of registers.
#pragma once

#include "kernels/cpu/simd.h"

namespace decoding::cpu {
namespace {

// Rows and lanes that differ in one bit of their index change places, bit by bit.
inline void transpose(Floats (&rows)[kLanes]) {
#pragma GCC unroll 4
  for (int bit = 1; bit < kLanes; bit *= 2) {
    const Ints odd = (lane_ids() & bit) != 0;
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i & bit) continue;
      const Floats low = rows[i], high = rows[i + bit];
      rows[i] = odd ? __builtin_shuffle(high, lane_ids() ^ bit) : low;
      rows[i + bit] = odd ? high : __builtin_shuffle(low, lane_ids() ^ bit);
    }
  }
}

}  // namespace
}  // namespace decoding::cpu
