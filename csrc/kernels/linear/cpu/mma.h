// Tiles of products by Arm's matrix instructions, which take two rows of x, two outputs and 8 bytes
// of each:
//
//   [a0 b0, a0 b1, a1 b0, a1 b1] += [a0, a1] [b0, b1]^T
//
// A line of a panel has 4 bytes of each output (dot.h), so lines go in pairs. A sum is the same to
// the bit as that of the dot product one line after the other: a matrix instruction of bfloat16 is
// defined as two of those.
#pragma once

#include <cstdint>

#include "kernels/linear/cpu/dot.h"

namespace decoding::cpu {
namespace {

#if defined(DECODING_NEON)
struct Bfloat16Mma : Bfloat16Dot {
  using Single = Bfloat16Dot;
  static Floats add_pairs(Ints left, Ints right, Floats sum) {
    asm(".arch armv8.6-a\n\tbfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(left), "w"(right));
    return sum;
  }
};

struct Int8Mma : Int8Dot {
  using Single = Int8Dot;
  static Ints add_pairs(Ints left, Ints right, Ints sum) {
    asm(".arch armv8.6-a\n\tsmmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(left), "w"(right));
    return sum;
  }
};

using Pair [[gnu::vector_size(16)]] = int64_t;

// 8 bytes of a row.
inline int64_t word(const int32_t* from) {
  int64_t value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

// multiply_tile of tile.h for these: multiply_rows finds it through its arguments.
template <typename Dot, int rows, int vectors, int lines, typename Left, typename Take>
  requires AddsPairs<Dot>
inline void multiply_tile(Left a, MatrixView<const typename Dot::Right> b, int column, Take take,
                          int depth, Prefetch<lines> prefetch) {
  // Half of a pair would be idle.
  if constexpr (rows == 1) {
    return multiply_tile<typename Dot::Single, 1, vectors>(a, b, column, take, depth, prefetch);
  }
  using Sums = Vector<typename Dot::Sum>;
  constexpr int pairs = (rows + 1) / 2;  // the second row of the last one may be the first again
  Sums sum[pairs][2 * vectors] = {};
  for (int k = 0; k < depth; k += 2) {
    prefetch(k);
    prefetch(k + 1);
    Ints left[pairs];
#pragma GCC unroll 8
    for (int pair = 0; pair < pairs; ++pair) {
      const int second = 2 * pair + 1 < rows ? 2 * pair + 1 : 2 * pair;
      left[pair] = (Ints)(Pair{word(&a.at(2 * pair, k)), word(&a.at(second, k))});
    }
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      // After an odd number of lines comes one of zeros, which meets numbers: prepare_row has
      // written zeros behind an odd number of pairs of bfloat16, and integers are all finite.
      const int32_t* line = &b.at(k, column + v * kLanes);
      const Ints first = load(line), next = k + 1 < depth ? load(line + b.stride) : Ints{};
      const Ints low = __builtin_shuffle(first, next, Ints{0, 4, 1, 5});
      const Ints high = __builtin_shuffle(first, next, Ints{2, 6, 3, 7});
#pragma GCC unroll 8
      for (int pair = 0; pair < pairs; ++pair) {
        sum[pair][2 * v] = Dot::add_pairs(left[pair], low, sum[pair][2 * v]);
        sum[pair][2 * v + 1] = Dot::add_pairs(left[pair], high, sum[pair][2 * v + 1]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      const Sums low = sum[r / 2][2 * v], high = sum[r / 2][2 * v + 1];
      const Ints half = r % 2 == 0 ? Ints{0, 1, 4, 5} : Ints{2, 3, 6, 7};
      take(r, column + v * kLanes, __builtin_shuffle(low, high, half));
    }
  }
}
#endif

}  // namespace
}  // namespace decoding::cpu
