#include "kernels/rows/logprobs.h"

#include <cmath>

#include "kernels/cpu/stream.h"
#include "kernels/rows/cpu/log_sum.h"

namespace decoding {
namespace cpu {
namespace {

// How many of `cols` columns are not below `own`, in each lane.
template <typename T>
Ints count_from(const T* x, int cols, float own) {
  Ints count = {};
  for_vectors(cols, [&](int c, auto... lanes) {
    const Floats nothing = broadcast(__builtin_nanf(""));
    count -= first_lanes(load(x + c, lanes...), nothing, lanes...) >= own;
  });
  return count;
}

// The first column that holds `value`, 0 where none does.
template <typename T>
int column_of(const T* x, int cols, float value) {
  int c = 0;
  while (c + kLanes <= cols && !any(load(x + c) == value)) c += kLanes;
  while (c < cols && x[c] != value) ++c;
  return c < cols ? c : 0;
}

template <typename T>
LabelScore label_score(const T* x, int cols, int32_t label) {
  const float own = x[label];
  Ints rank = {};
  const auto [peak, sum] =
      log_sum(x, cols, [&](int begin, int count) { rank += count_from(x + begin, count, own); });
  int32_t all = 0;
  for (int lane = 0; lane < kLanes; ++lane) all += rank[lane];
  return {own - peak - std::log(sum), all, column_of(x, cols, peak)};
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void label_logprobs(cpu::Stream<isa>& stream, const LabelLogprobsParams<T>& p) {
  const cpu::Range rows = stream.share(p.rows);
  for (int r = rows.begin; r < rows.end; ++r) {
    const T* row = p.logits + static_cast<size_t>(r) * p.stride;
    const int32_t label = p.labels[r];
    p.y[r] = label == kIgnored ? kNoLabel : cpu::label_score(row, p.vocab, label);
  }
  stream.barrier();
}

template void label_logprobs(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                             const LabelLogprobsParams<float>&);

}  // namespace decoding
