// Panels are the outer loop and rows the inner one, so that each weight comes from memory once.
#include "kernels/linear.h"

#include "kernels/cpu/operand.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/tile.h"

namespace decoding {
namespace cpu {
namespace {

template <Activation activation>
Floats activate(Floats x) {
  if constexpr (activation == Activation::relu) return max(broadcast(0.0f), x);
  if constexpr (activation == Activation::gelu) return 0.5f * x * (1.0f + erf(0.707106781f * x));
  if constexpr (activation == Activation::gelu_tanh) {
    return 0.5f * x * (1.0f + tanh(0.797884561f * fma(0.044715f * x * x, x, x)));
  }
  if constexpr (activation == Activation::silu) return x / (1.0f + exp(-x));
  return x;
}

// Writes activation(sums + bias) + residual for `rows` rows and the `columns` columns of a panel.
template <Activation activation>
void finish(const LinearParams<float>& p, int row, int rows, int column, const float* sums) {
  const int outputs = p.weight.outputs;
  const int columns = std::min(kPanel, outputs - column);
  for (int r = 0; r < rows; ++r, sums += kPanel) {
    const size_t at = static_cast<size_t>(row + r) * outputs + column;
    for_vectors(columns, [&](int c, auto... count) {
      Floats y = load(sums + c, count...);
      if (p.bias != nullptr) y += load(p.bias + column + c, count...);
      y = activate<activation>(y);
      if (p.residual != nullptr) y += load(p.residual + at + c, count...);
      store(p.y + at + c, y, count...);
    });
  }
}

void finish(const LinearParams<float>& p, int row, int rows, int column, const float* sums) {
  switch (p.activation) {
    case Activation::none:
      return finish<Activation::none>(p, row, rows, column, sums);
    case Activation::relu:
      return finish<Activation::relu>(p, row, rows, column, sums);
    case Activation::gelu:
      return finish<Activation::gelu>(p, row, rows, column, sums);
    case Activation::gelu_tanh:
      return finish<Activation::gelu_tanh>(p, row, rows, column, sums);
    case Activation::silu:
      return finish<Activation::silu>(p, row, rows, column, sums);
  }
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void linear(cpu::Stream<isa>& stream, const LinearParams<T>& p) {
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
      cpu::multiply_panel<isa>(kind, p.weight, panel, x.from(row), rows, sums);
      cpu::finish(p, first + row, rows, panel * kPanel, sums);
    }
  });
}

template void linear(cpu::Stream<cpu::Isa::DECODING_ISA>&, const LinearParams<float>&);

}  // namespace decoding
