#include "kernels/rows/overflow.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "kernels/cpu/stream.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int32_t kInfinity = 0x7f800000;  // of the bits of |x|; those of NaN are above

// The bits of the largest finite |x|, and of the largest of all: as integers they have the order of
// the numbers.
struct Extremes {
  int32_t finite = 0, any = 0;
};

Extremes extremes_of(const float* x, int cols) {
  Extremes found;
  for (int c = 0; c < cols; ++c) {
    const int32_t bits = std::bit_cast<int32_t>(x[c]) & 0x7fffffff;
    found.any = std::max(found.any, bits);
    found.finite = std::max(found.finite, bits < kInfinity ? bits : 0);
  }
  return found;
}

void raise_to(std::atomic_ref<float> largest, float value) {
  float before = largest.load(std::memory_order_relaxed);
  while (before < value &&
         !largest.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
}

}  // namespace
}  // namespace cpu

// Threads may have rows of the same place, and others read the count meanwhile: all is atomic.
template <typename T, cpu::Isa isa>
void detect_overflow(cpu::Stream<isa>& stream, const OverflowParams<T>& p) {
  const cpu::Range rows = stream.share(rows_of(p));
  int32_t largest = 0, not_finite = 0;
  for (int r = rows.begin; r < rows.end; ++r) {
    if (place_of(p, r) < 0) continue;
    const auto found = cpu::extremes_of(p.x + static_cast<size_t>(r) * p.cols, p.cols);
    const bool is_finite = found.any < cpu::kInfinity;
    largest = std::max(largest, found.finite);
    not_finite += !is_finite;
    if (is_finite && !p.renews) continue;
    const std::atomic_ref<int32_t> first(p.first[place_of(p, r)]);
    if (p.renews || first.load(std::memory_order_relaxed) == 0) {
      first.store(is_finite ? 0 : p.tensor, std::memory_order_relaxed);
    }
  }
  cpu::raise_to(std::atomic_ref<float>(p.count->largest), std::bit_cast<float>(largest));
  if (not_finite > 0) {
    std::atomic_ref<int32_t>(p.count->not_finite).fetch_add(not_finite, std::memory_order_relaxed);
  }
  stream.barrier();
}

template void detect_overflow(cpu::Stream<cpu::Isa::DECODING_ISA>&, const OverflowParams<float>&);

}  // namespace decoding
