// Panels, or rows, shared over the threads. The contract is in shortlist.h.
#include "kernels/linear/shortlist.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/stream.h"

namespace decoding {
namespace {

// Whatever the kind, an output has a word of four bytes in each line of its panel.
void gather_panel(const GatherOutputsParams& p, int panel) {
  const int group = panel_group(p.weight.kind);
  const int64_t lines = (p.weight.inputs + group - 1) / group, size = lines * kPanel;
  const auto* from = static_cast<const uint32_t*>(p.weight.data);
  uint32_t* to = p.panels + panel * size;
  const int first = panel * kPanel, count = std::min(kPanel, p.count - first);
  if (count < kPanel) std::fill_n(to, size, 0);
  for (int i = 0; i < count; ++i) {
    const int token = p.tokens[first + i];
    const uint32_t* column = from + token / kPanel * size + token % kPanel;
    for (int64_t line = 0; line < lines; ++line) to[line * kPanel + i] = column[line * kPanel];
  }
}

template <typename T>
void gather(const T* from, const int32_t* tokens, cpu::Range mine, T* to) {
  if (from == nullptr) return;
  for (int i = mine.begin; i < mine.end; ++i) to[i] = from[tokens[i]];
}

}  // namespace

template <cpu::Isa isa>
void gather_outputs(cpu::Stream<isa>& stream, const GatherOutputsParams& p) {
  const cpu::Range panels = stream.share((p.count + kPanel - 1) / kPanel);
  for (int panel = panels.begin; panel < panels.end; ++panel) gather_panel(p, panel);
  const cpu::Range mine = stream.share(p.count);
  gather(p.weight.scale, p.tokens, mine, p.scale);
  gather(p.weight.sums, p.tokens, mine, p.sums);
  gather(p.bias, p.tokens, mine, p.bias_gathered);
  stream.barrier();
}

template <cpu::Isa isa>
void spread_logits(cpu::Stream<isa>& stream, const SpreadLogitsParams& p) {
  const cpu::Range mine = stream.share(p.rows);
  for (int64_t row = mine.begin; row < mine.end; ++row) {
    const float* x = p.x + row * p.count;
    float* y = p.y + row * p.vocab;
    std::fill_n(y, p.vocab, -INFINITY);
    for (int i = 0; i < p.count; ++i) y[p.tokens[i]] = x[i];
  }
  stream.barrier();
}

template void gather_outputs(cpu::Stream<cpu::Isa::DECODING_ISA>&, const GatherOutputsParams&);
template void spread_logits(cpu::Stream<cpu::Isa::DECODING_ISA>&, const SpreadLogitsParams&);

}  // namespace decoding
