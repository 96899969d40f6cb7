// The vector vocabulary of the CPU kernels, in the widest registers of the instruction set that the
// file is compiled for. GCC's vector extensions carry most of it: operators work lane by lane, a
// scalar operand is repeated, and `mask ? a : b` selects.
//
// Everything is in an anonymous namespace: every source is compiled once per instruction set,
// and the linker must never take the code of one for another's.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(DECODING_NEON)  // not __ARM_NEON, which portable code on aarch64 has, too
#include <arm_neon.h>
#endif

namespace decoding::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

#if defined(__AVX512F__) || defined(DECODING_NEON)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

using Floats [[gnu::vector_size(4 * kLanes)]] = float;
using Ints [[gnu::vector_size(4 * kLanes)]] = int32_t;
using Shorts [[gnu::vector_size(4 * kLanes)]] = int16_t;

inline Floats broadcast(float value) { return value - Floats{}; }  // x - 0 is x, even for -0
inline Ints broadcast(int32_t value) { return value - Ints{}; }

inline Ints lane_ids() {
  Ints ids;
  for (int lane = 0; lane < kLanes; ++lane) ids[lane] = lane;
  return ids;
}

inline Floats load(const float* from) {
  Floats value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

inline Ints load(const int32_t* from) {
  Ints value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

inline void store(float* to, Floats value) { __builtin_memcpy(to, &value, sizeof value); }
inline void store(int32_t* to, Ints value) { __builtin_memcpy(to, &value, sizeof value); }

// The first `count` < kLanes elements, zero in the other lanes; memory after them is not touched.
inline Floats load(const float* from, int count) {
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
#elif defined(__AVX2__)
  return _mm256_maskload_ps(from, (__m256i)(lane_ids() < count));
#else
  Floats value = {};
  for (int lane = 0; lane < count; ++lane) value[lane] = from[lane];
  return value;
#endif
}

inline Ints load(const int32_t* from, int count) {
#if defined(__AVX512F__)
  return (Ints)_mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << count) - 1), from);
#elif defined(__AVX2__)
  return (Ints)_mm256_maskload_epi32(from, (__m256i)(lane_ids() < count));
#else
  Ints value = {};
  for (int lane = 0; lane < count; ++lane) value[lane] = from[lane];
  return value;
#endif
}

inline void store(float* to, Floats value, int count) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), value);
#elif defined(__AVX2__)
  _mm256_maskstore_ps(to, (__m256i)(lane_ids() < count), value);
#else
  for (int lane = 0; lane < count; ++lane) to[lane] = value[lane];
#endif
}

// a * b + c, rounded once where the hardware can. Spelt out, because whether a compiler fuses an
// expression may depend on the code around it, and equal rows must give equal bits.
inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(DECODING_NEON)
  return vfmaq_f32(c, a, b);
#elif defined(__FMA__)  // NEON's reference on x86-64 (tests/aarch64)
  return _mm_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

inline Floats fma(float a, Floats b, Floats c) { return fma(broadcast(a), b, c); }

// The product a * b, which no compiler fuses with a sum behind it, whatever code is around it.
inline Floats product(Floats a, Floats b) {
  Floats value = a * b;
#if defined(__AVX512F__)
  asm("" : "+v"(value));
#elif defined(__AVX2__)
  asm("" : "+x"(value));
#endif
  return value;
}

// Where one operand is NaN, the second one comes out.
inline Floats max(Floats a, Floats b) { return a > b ? a : b; }
inline Floats min(Floats a, Floats b) { return a < b ? a : b; }
inline Ints max(Ints a, Ints b) { return a > b ? a : b; }

inline Floats bits(Ints x) { return __builtin_bit_cast(Floats, x); }
inline Ints bits(Floats x) { return __builtin_bit_cast(Ints, x); }

inline Floats floats(Ints x) { return __builtin_convertvector(x, Floats); }

// The nearest integers, the even ones of ties.
inline Ints nearest(Floats x) {
#if defined(__AVX512F__)
  return (Ints)_mm512_maskz_cvtps_epi32(0xffff, x);
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtps_epi32(x);
#elif defined(__SSE2__)
  return (Ints)_mm_cvtps_epi32(x);
#elif defined(DECODING_NEON)
  return vcvtnq_s32_f32(x);
#else
  Ints rounded;
  for (int lane = 0; lane < kLanes; ++lane) rounded[lane] = __builtin_lrintf(x[lane]);
  return rounded;
#endif
}

// In each lane a0 b0 + a1 b1, of two 16-bit integers each.
inline Ints dot_pairs(Ints a, Ints b) {
#if defined(__AVX512F__)
  return (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(DECODING_NEON)
  const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
  return vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
#else
  return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

inline Floats abs(Floats x) { return bits(bits(x) & 0x7fffffff); }
inline Floats with_sign_of(Floats sign, Floats magnitude) {
  return bits((bits(sign) & INT32_MIN) | bits(magnitude));
}

// Whether a comparison holds in some lane.
inline bool any(Ints holds) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)holds, (__m512i)holds) != 0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256((__m256i)holds, (__m256i)holds);
#elif defined(DECODING_NEON)
  return vmaxvq_u32((uint32x4_t)holds) != 0;
#else
  int32_t lanes = 0;
  for (int lane = 0; lane < kLanes; ++lane) lanes |= holds[lane];
  return lanes != 0;
#endif
}

// Calls use(lane) for the lanes in which a comparison holds.
template <typename Use>
inline void for_lanes(Ints holds, Use&& use) {
#if defined(__AVX512F__)
  unsigned lanes = _mm512_test_epi32_mask((__m512i)holds, (__m512i)holds);
  for (; lanes != 0; lanes &= lanes - 1) use(__builtin_ctz(lanes));
#elif defined(__AVX2__)
  unsigned lanes = _mm256_movemask_ps((__m256)holds);
  for (; lanes != 0; lanes &= lanes - 1) use(__builtin_ctz(lanes));
#else
  if (!any(holds)) return;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (holds[lane] != 0) use(lane);
  }
#endif
}

// Calls use(i, count...) for all vectors of `size` elements: without a count for whole ones, with
// the number of elements for a last one that is not.
template <typename Use>
inline void for_vectors(int size, Use&& use) {
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) use(i);
  if (i < size) use(i, size - i);
}

// Across the lanes, halves first: the order is fixed.
template <typename Values, typename Combine>
inline auto reduce(Values x, Combine combine) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    x = combine(x, __builtin_shuffle(x, (lane_ids() + half) & (kLanes - 1)));
  }
  return x[0];
}

inline float sum_of(Floats x) {
  return reduce(x, [](Floats a, Floats b) { return a + b; });
}

inline float max_of(Floats x) {
  return reduce(x, [](Floats a, Floats b) { return max(a, b); });
}

inline int32_t max_of(Ints x) {
  return reduce(x, [](Ints a, Ints b) { return max(a, b); });
}

// The coefficients below are our own: minimax fits (Lawson's iteration on Chebyshev nodes, in
// 40-digit arithmetic) of the relative error in the result, rounded to float.

// e^x = p 2^n: returns p; n is in the low bits of `power`, above 1.5 * 2^23.
inline Floats exp_parts(Floats x, Ints& power) {
  // x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer, which then is
  // in the low bits; ln 2 is split so that n * 0.693145752 is exact.
  const Floats shifter = broadcast(12582912.0f);
  const Floats shifted = fma(1.44269504f, x, shifter);
  const Floats n = shifted - shifter;
  Floats r = fma(-0.693145752f, n, x);
  r = fma(-1.42860677e-6f, n, r);
  // e^r = 1 + r + r^2 p(r)
  Floats p = broadcast(0.00138143206f);
  p = fma(p, r, broadcast(0.00836885069f));
  p = fma(p, r, broadcast(0.0416684002f));
  p = fma(p, r, broadcast(0.166665196f));
  p = fma(p, r, broadcast(0.49999994f));
  power = bits(shifted);
  return fma(r * r, p, r) + 1.0f;
}

// Within 1 ulp; 0 below -104, infinity above 88.7, NaN for NaN.
inline Floats exp(Floats x) {
  x = x > 90.0f ? broadcast(90.0f) : x;
  x = x < -105.0f ? broadcast(-105.0f) : x;
  Ints power;
  const Floats p = exp_parts(x, power);
  // Times 2^n in two steps, so that results below the normal range round once and do not wrap.
  power -= bits(broadcast(12582912.0f));
  const Ints half = power >> 1;
  return p * bits((half + 127) << 23) * bits((power - half + 127) << 23);
}

// The same for what is not above 0, but 0 already below -87: for sums that hold e^0.
inline Floats exp_not_above_0(Floats x) {
  Ints power;
  const Floats p = exp_parts(x, power);
  return x < -87.0f ? Floats{} : p * bits((power << 23) + (127 << 23));
}

// Within 2 ulp. Near zero x + x^3 p(x^2), so that small values keep their precision.
inline Floats tanh(Floats x) {
  const Floats a = abs(x), z = x * x;
  Floats p = broadcast(-0.00589514989f);
  p = fma(p, z, broadcast(0.0207959637f));
  p = fma(p, z, broadcast(-0.0537838265f));
  p = fma(p, z, broadcast(0.133319244f));
  p = fma(p, z, broadcast(-0.333332986f));
  const Floats near = fma(p * z, a, a);
  const Floats far = 1.0f - 2.0f / (exp(a + a) + 1.0f);
  return with_sign_of(x, a < 0.6f ? near : far);
}

// Within 2 ulp. Near zero x + x p(x^2), beyond 1 - e^q(x) where q fits log(erfc(x)) up to 4.
inline Floats erf(Floats x) {
  const Floats a = abs(x), z = x * x;
  Floats p = broadcast(7.85385419e-05f);
  p = fma(p, z, broadcast(-0.000801019138f));
  p = fma(p, z, broadcast(0.00518832728f));
  p = fma(p, z, broadcast(-0.026853811f));
  p = fma(p, z, broadcast(0.112835854f));
  p = fma(p, z, broadcast(-0.37612626f));
  p = fma(p, z, broadcast(0.128379166f));
  const Floats near = fma(p, a, a);
  const Floats b = a > 4.0f ? broadcast(4.0f) : a;
  Floats q = broadcast(0.000188822829f);
  q = fma(q, b, broadcast(-0.00297243474f));
  q = fma(q, b, broadcast(0.0219404027f));
  q = fma(q, b, broadcast(-0.103327289f));
  q = fma(q, b, broadcast(-0.637883127f));
  q = fma(q, b, broadcast(-1.12725139f));
  q = fma(q, b, broadcast(-0.000300436863f));
  const Floats far = 1.0f - exp(q);
  return with_sign_of(x, a < 1.0f ? near : far);
}

}  // namespace
}  // namespace decoding::cpu
