// Dot products with the weights of a panel: each 4 bytes of a panel's line go into the sum of one
// output. They hold one float32, two bfloat16 or four int8, and meet words of x, which is prepared
// for that.
//
// left: the words of x for a line, kParts of them in a row of x, each repeated in all lanes.
// right: the weights that the part-th of them meets, of a vector of the line.
#pragma once

#include <cstdint>

#include "kernels/cpu/tile.h"

namespace decoding::cpu {
namespace {

// Any machine's: bfloat16 is the upper half of float32, and x stays what it is.
struct Bfloat16WideDot {
  using Left = float;
  using Right = int32_t;
  using Sum = float;
  static constexpr int kInputs = 2, kParts = 2;
  static Floats right(Ints line, int part) {
    return bits(part == 0 ? line << 16 : line & static_cast<int32_t>(0xffff0000));
  }
  static Floats add(Floats left, Floats right, Floats sum) { return fma(left, right, sum); }
};

// Any machine's: as products of 16-bit integers, of the even inputs, then of the odd ones.
struct Int8WideDot {
  using Left = int32_t;
  using Right = int32_t;
  using Sum = int32_t;
  static constexpr int kInputs = 4, kParts = 2;
  static Ints right(Ints line, int part) {
    const Shorts pairs = (Shorts)line;
    return (Ints)(part == 0 ? pairs << 8 >> 8 : pairs >> 8);
  }
  static Ints add(Ints left, Ints right, Ints sum) { return sum + dot_pairs(left, right); }
};

#if defined(__AVX512F__) || defined(DECODING_NEON)
// These two are written as assembly, because the intrinsics would ask for the code around them to
// be compiled for machines that have the instruction; as it is, it serves all of AVX-512, or NEON.
// (.arch speaks to the assembler alone.)
struct Bfloat16Dot {
  using Left = int32_t;
  using Right = int32_t;
  using Sum = float;
  static constexpr int kInputs = 2, kParts = 1;
  static Ints right(Ints line, int) { return line; }
  static Floats add(Ints left, Ints right, Floats sum) {
#if defined(__AVX512F__)
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(left), "v"(right));
#else
    asm(".arch armv8.6-a\n\tbfdot %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(left), "w"(right));
#endif
    return sum;
  }
};

using Bfloat16s [[gnu::vector_size(2 * kLanes)]] = uint16_t;

// To the nearest, of two to the even one.
inline Bfloat16s round_to_bfloat16(Floats x) {
  Bfloat16s rounded;
#if defined(__AVX512F__)
  asm("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(x));
#else
  asm(".arch armv8.6-a\n\tbfcvtn %0.4h, %1.4s" : "=w"(rounded) : "w"(x));
#endif
  return rounded;
}

struct Int8Dot {
  using Left = int32_t;
  using Right = int32_t;
  using Sum = int32_t;
  static constexpr int kInputs = 4, kParts = 1;
  static Ints right(Ints line, int) { return line; }
  static Ints add(Ints left, Ints right, Ints sum) {
#if defined(__AVX512F__)
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(left), "v"(right));
#else
    asm(".arch armv8.6-a\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(left), "w"(right));
#endif
    return sum;
  }
};
#endif

}  // namespace
}  // namespace decoding::cpu
