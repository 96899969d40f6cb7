// The two ceilings of a CPU core, for roofline.py: reading memory and multiply-adds in registers.
#ifdef __AVX512F__
#define BYTES 64
#else
#define BYTES 32
#endif
// Loads may be unaligned; it costs nothing where the address happens to be aligned.
typedef float vec __attribute__((vector_size(BYTES), aligned(4)));
enum { kLanes = BYTES / 4, kChains = 10 };  // 2 units x 4 cycles of latency = 8 chains at least

// Sum of x[0..count), so that every byte is read once.
float read_all(const float* x, long count) {
  vec sum[8] = {0};
  for (long i = 0; i + 8 * kLanes <= count; i += 8 * kLanes)
    for (int j = 0; j < 8; ++j) sum[j] += *(const vec*)(x + i + j * kLanes);
  float total = 0;
  for (int j = 0; j < 8; ++j)
    for (int lane = 0; lane < kLanes; ++lane) total += sum[j][lane];
  return total;
}

int multiply_adds_per_round(void) { return kChains * kLanes; }

// y = y * factor + term in independent chains; bounded for |factor| < 1.
float multiply_add(long rounds, float factor, float term) {
  vec chain[kChains] = {0};
  vec factors = {0}, terms = {0};
  factors += factor;
  terms += term;
  for (long i = 0; i < rounds; ++i)
    for (int j = 0; j < kChains; ++j) chain[j] = chain[j] * factors + terms;
  float total = 0;
  for (int j = 0; j < kChains; ++j) total += chain[j][0];
  return total;
}
