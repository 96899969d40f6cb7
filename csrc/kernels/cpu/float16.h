// IEEE halves in memory, float32 in registers: see bfloat16.h.
#pragma once

#include "kernels/cpu/bfloat16.h"

namespace decoding::cpu {
namespace {

// In the instruction sets that have it, one instruction.
template <>
inline Floats widen<Float16>(Halves x) {
#if defined(__AVX512F__)
  return _mm512_maskz_cvtph_ps(0xffff, (__m256i)x);
#elif defined(__AVX2__)
  return _mm256_cvtph_ps((__m128i)x);
#elif defined(DECODING_NEON)
  return vcvt_f32_f16((float16x4_t)x);
#else
  // Exponent and mantissa moved up to float's, 2^112 too small, which also makes numbers below
  // halves' normal range right. Above 65504 there are infinity and NaN.
  const Ints whole = __builtin_convertvector(x, Ints);
  const Floats small = bits((whole & 0x7fff) << 13) * 0x1p112f;
  const Ints magnitude = small > 65504.0f ? bits(small) | 0x7f800000 : bits(small);
  return bits(magnitude | (whole & 0x8000) << 16);
#endif
}

// To the nearest, of two to the even one; NaN stays NaN.
template <>
inline Halves narrow<Float16>(Floats x) {
#if defined(__AVX512F__)
  return (Halves)_mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__AVX2__)
  return (Halves)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(DECODING_NEON)
  return (Halves)vcvt_f16_f32(x);
#else
  const Floats magnitude = abs(x);
  const Ints whole = bits(magnitude);
  // Below 2^-14 halves are multiples of 2^-24, as floats from 0.5 to 1 are: adding 0.5 rounds.
  const Ints tiny = bits(magnitude + 0.5f) - bits(broadcast(0.5f));
  Ints normal = ((whole + 0xfff + ((whole >> 13) & 1)) >> 13) - (112 << 10);
  normal = normal > 0x7c00 ? broadcast(0x7c00) : normal;
  Ints rounded = magnitude < 0x1p-14f ? tiny : normal;
  rounded = x == x ? rounded : broadcast(0x7e00);
  return __builtin_convertvector(rounded | ((bits(x) >> 16) & 0x8000), Halves);
#endif
}

}  // namespace
}  // namespace decoding::cpu
