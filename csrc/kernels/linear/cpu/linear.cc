// Panels are the outer loop and rows the inner one, so that each weight comes from memory once.
#include "kernels/linear/linear.h"

#include "kernels/cpu/activate.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/tile.h"
#include "kernels/linear/cpu/operand.h"
#include "kernels/linear/cpu/panel.h"
#include "kernels/linear/cpu/panel_sums.h"
#include "kernels/linear/glu.h"

namespace decoding {
namespace cpu {
namespace {

// Writes activation(sums + bias) + residual for rows from `row` on and a panel's columns.
template <Activation activation>
void finish(const LinearParams<float>& p, int row, int column, const PanelSums& sums) {
  const size_t outputs = p.weight.outputs, first = row * outputs + column;
  const float* bias = p.bias == nullptr ? nullptr : p.bias + column;
  const float* residual = p.residual == nullptr ? nullptr : p.residual + first;
  for_each_sum(sums, [=, to = p.y + first](int r, int c, Floats y, auto... count) {
    const size_t at = r * outputs + c;
    if (bias != nullptr) y += load(bias + c, count...);
    y = activate<activation>(y);
    if (residual != nullptr) y += load(residual + at, count...);
    store(to + at, y, count...);
  });
}

void finish(const LinearParams<float>& p, int row, int column, const PanelSums& sums) {
  with_activation(p.activation,
                  [&]<Activation activation>() { finish<activation>(p, row, column, sums); });
}

// Asks for the lines of y that rows [row, end) of a panel go to, so that no store waits for them.
void fetch(const LinearParams<float>& p, int row, int end, int column) {
  for (; row < end; ++row) {
    const float* y = p.y + static_cast<size_t>(row) * p.weight.outputs + column;
    for (int c = 0; c < kPanel; c += 16) __builtin_prefetch(y + c, 1);
  }
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void linear(cpu::Stream<isa>& stream, const LinearParams<T>& p) {
  if (p.gated != nullptr) {
    linear(stream, before_gate(p));
    return gate(stream, gate_behind(p));
  }
  const cpu::DotKind kind = cpu::dot_kind(p.weight.kind, stream.features());
  cpu::with_operand(stream, p, [&](const cpu::Operand& x, int first, int count) {
    const int panels = (p.weight.outputs + kPanel - 1) / kPanel;
    // Rows part where the panels alone would leave threads without work.
    int most = cpu::kRowBlock;
    const auto blocks = [&] { return (count + most - 1) / most; };
    while (panels * blocks() < 4 * stream.size() && most > 2 * cpu::kTileRows) most /= 2;
    const cpu::Range share = stream.share(panels * blocks());
    for (int item = share.begin; item < share.end; ++item) {
      const int panel = item / blocks(), row = item % blocks() * most;
      const int rows = std::min(most, count - row);
      alignas(64) float sums[cpu::kRowBlock * kPanel];
      const auto finish = [&](int begin, const cpu::PanelSums& tile) {
        const int end = begin + tile.rows, next = std::min(end + tile.rows, rows);
        cpu::fetch(p, first + row + end, first + row + next, panel * kPanel);
        cpu::finish(p, first + row + begin, panel * kPanel, tile);
      };
      cpu::multiply_panel<isa>(kind, p.weight, panel, x.from(row), rows, sums, finish);
    }
  });
}

template void linear(cpu::Stream<cpu::Isa::DECODING_ISA>&, const LinearParams<float>&);

}  // namespace decoding
