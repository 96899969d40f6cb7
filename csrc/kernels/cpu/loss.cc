// The log-sum-exp of a row grows block by block: what has been added up is rescaled whenever a
// larger logit turns up, so each block is read from memory once.
#include "kernels/loss.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kBlock = 512;  // columns, added up apart so that errors of long sums stay small

// The largest of a block's columns; NaN is passed over.
float largest(const float* x, int cols) {
  const Floats nothing = broadcast(-INFINITY);
  Floats top = nothing;
  for_vectors(cols, [&](int c, auto... count) {
    Floats value = load(x + c, count...);
    ((value = lane_ids() < count ? value : nothing), ...);
    top = max(value, top);
  });
  return max_of(top);
}

Floats sum_of_exponentials(const float* x, int cols, float peak) {
  Floats sum = {};
  for_vectors(cols, [&](int c, auto... count) {
    Floats weight = exp(load(x + c, count...) - peak);
    ((weight = lane_ids() < count ? weight : Floats{}), ...);
    sum += weight;
  });
  return sum;
}

float log_probability(const float* x, int cols, int32_t label) {
  float peak = -INFINITY;
  Floats sum = {};
  for (int begin = 0; begin < cols; begin += kBlock) {
    const int count = std::min(kBlock, cols - begin);
    const float top = largest(x + begin, count);
    if (top > peak) {
      sum *= exp(broadcast(peak - top));
      peak = top;
    }
    // -inf - -inf would be NaN; relative to any other peak it weighs the nothing that it should.
    sum += sum_of_exponentials(x + begin, count, peak == -INFINITY ? 0.0f : peak);
  }
  return x[label] - peak - std::log(sum_of(sum));
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void cross_entropy(cpu::Stream<isa>& stream, const CrossEntropyParams<T>& p) {
  const cpu::Range rows = stream.share(p.rows);
  for (int r = rows.begin; r < rows.end; ++r) {
    const T* row = p.logits + static_cast<size_t>(r) * p.stride;
    const int32_t label = p.labels[r];
    p.y[r] = label == kIgnored ? 0.0f : cpu::log_probability(row, p.vocab, label);
  }
  stream.barrier();
}

template void cross_entropy(cpu::Stream<cpu::Isa::DECODING_ISA>&, const CrossEntropyParams<float>&);

}  // namespace decoding
