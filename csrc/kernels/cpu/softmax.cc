#include "kernels/softmax.h"

#include <algorithm>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kBlock =
    512;  // columns that are added up apart, so that errors of long sums stay small

// y = softmax(scale * x + bias) of one row; y may alias x, bias may be null.
void softmax_row(const float* x, const float* bias, float* y, int cols, float scale) {
  Floats top = broadcast(-__builtin_inff());
  for_vectors(cols, [&](int c, auto... count) {
    const Floats shift = bias != nullptr ? load(bias + c, count...) : Floats{};
    Floats z = fma(scale, load(x + c, count...), shift);
    store(y + c, z, count...);
    ((z = lane_ids() < count ? z : broadcast(-__builtin_inff())), ...);
    top = max(z, top);
  });
  // A row of -inf takes exp(-inf - -inf) and becomes NaN; so does one with NaN or +inf.
  const Floats highest = broadcast(max_of(top));
  Floats sum = {};
  for (int begin = 0; begin < cols; begin += kBlock) {
    Floats part = {};
    float* block = y + begin;
    for_vectors(std::min(kBlock, cols - begin), [&](int c, auto... count) {
      Floats weight = exp(load(block + c, count...) - highest);
      store(block + c, weight, count...);
      ((weight = lane_ids() < count ? weight : Floats{}), ...);
      part += weight;
    });
    sum += part;
  }
  const Floats factor = broadcast(1.0f / sum_of(sum));
  for_vectors(
      cols, [&](int c, auto... count) { store(y + c, load(y + c, count...) * factor, count...); });
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void softmax(cpu::Stream<isa>& stream, const SoftmaxParams<T>& p) {
  const cpu::Range rows = stream.share(p.rows);
  for (int r = rows.begin; r < rows.end; ++r) {
    const size_t at = static_cast<size_t>(r) * p.cols;
    cpu::softmax_row(p.x + at, p.bias, p.y + at, p.cols, p.scale);
  }
  stream.barrier();
}

template void softmax(cpu::Stream<cpu::Isa::DECODING_ISA>&, const SoftmaxParams<float>&);

}  // namespace decoding
