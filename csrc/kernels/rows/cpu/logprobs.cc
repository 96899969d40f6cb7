#include "kernels/rows/logprobs.h"

#include <cmath>

#include "kernels/cpu/stream.h"
#include "kernels/rows/cpu/log_sum.h"

namespace decoding {

template <typename T, cpu::Isa isa>
void label_logprobs(cpu::Stream<isa>& stream, const LabelLogprobsParams<T>& p) {
  const cpu::Range rows = stream.share(p.rows);
  for (int r = rows.begin; r < rows.end; ++r) {
    const T* row = p.logits + static_cast<size_t>(r) * p.stride;
    const int32_t label = p.labels[r];
    p.y[r] = 0.0f;
    if (label == kIgnored) continue;
    const auto [peak, sum] = cpu::log_sum(row, p.vocab, [](int, int) {});
    p.y[r] = row[label] - peak - std::log(sum);
  }
  stream.barrier();
}

template void label_logprobs(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                             const LabelLogprobsParams<float>&);

}  // namespace decoding
