// The ceilings of a CPU core, for roofline.py: reading memory, and the multiply-adds of each kind of
// weight in registers. A kind that the machine has no instruction for is computed as it would be
// there: bfloat16 in float32, int8 in pairs of 16 bits.
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifdef __AVX512F__
enum { kBytes = 64, kChains = 16 };  // of 32 registers
#else
enum { kBytes = 32, kChains = 10 };  // of 16; 2 units x 4 cycles of latency = 8 chains at least
#endif
typedef float vec __attribute__((vector_size(kBytes)));
typedef int32_t int_vec __attribute__((vector_size(kBytes)));
enum { kLanes = kBytes / 4 };

// Sum of x[0..count), aligned to kBytes, `times` over, so that every byte is read so often.
float read_all(const float* x, long count, long times) {
  vec sum[8] = {0};
  for (long time = 0; time < times; ++time)
    for (long i = 0; i + 8 * kLanes <= count; i += 8 * kLanes)
      for (int j = 0; j < 8; ++j) sum[j] += *(const vec*)(x + i + j * kLanes);
  float total = 0;
  for (int j = 0; j < 8; ++j)
    for (int lane = 0; lane < kLanes; ++lane) total += sum[j][lane];
  return total;
}

// Each computes `rounds` rounds of independent chains and returns the multiply-adds that they were.
// The chains begin at different numbers and go to `sink`: a compiler computes equal ones once, and
// what nobody reads not at all.

long float32(long rounds, float value, float* sink) {
  vec chain[kChains], factor = {0}, term = {0};
  factor += value, term += 1;
  for (int j = 0; j < kChains; ++j) chain[j] = factor * (float)j;
  for (long i = 0; i < rounds; ++i)  // bounded for |value| < 1
    for (int j = 0; j < kChains; ++j) chain[j] = chain[j] * factor + term;
  for (int j = 0; j < kChains; ++j) *sink += chain[j][0];
  return rounds * kChains * kLanes;
}

long bfloat16(long rounds, float value, float* sink) {
#ifdef __AVX512BF16__
  __m512 chain[kChains];
  for (int j = 0; j < kChains; ++j) chain[j] = _mm512_set1_ps((float)j);
  const __m512bh pairs = (__m512bh)_mm512_set1_ps(value);
  for (long i = 0; i < rounds; ++i)
    for (int j = 0; j < kChains; ++j) chain[j] = _mm512_dpbf16_ps(chain[j], pairs, pairs);
  for (int j = 0; j < kChains; ++j) *sink += chain[j][0];
  return rounds * kChains * 2 * kLanes;
#else
  return float32(rounds, value, sink);
#endif
}

#if defined(__AVX512VNNI__)
enum { kProducts = 4 };
static inline int_vec add_products(int_vec sum, int_vec x) {
  return (int_vec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)x);
}
#elif defined(__AVX512BW__)
enum { kProducts = 2 };
static inline int_vec add_products(int_vec sum, int_vec x) {
  return sum + (int_vec)_mm512_madd_epi16((__m512i)x, (__m512i)sum);
}
#elif defined(__AVX2__)
enum { kProducts = 2 };
static inline int_vec add_products(int_vec sum, int_vec x) {
  return sum + (int_vec)_mm256_madd_epi16((__m256i)x, (__m256i)sum);
}
#else
enum { kProducts = 1 };
static inline int_vec add_products(int_vec sum, int_vec x) { return sum * x + x; }
#endif

long int8(long rounds, float value, float* sink) {
  int_vec chain[kChains], bytes = {0};
  bytes += 0x01010101 * (int32_t)(8 * value);
  for (int j = 0; j < kChains; ++j) chain[j] = bytes * j;
  for (long i = 0; i < rounds; ++i)
    for (int j = 0; j < kChains; ++j) chain[j] = add_products(chain[j], bytes);
  for (int j = 0; j < kChains; ++j) *sink += chain[j][0];
  return rounds * kChains * kProducts * kLanes;
}
