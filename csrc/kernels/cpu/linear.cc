// Panels are the outer loop and rows the inner one, so that each weight comes from memory once. K
// goes in blocks, small enough that a block of the panel stays in the first-level cache while all
// rows pass over it. Each block is added up apart, which also keeps the rounding errors of long
// sums small.
#include "kernels/linear.h"

#include "kernels/cpu/stream.h"
#include "kernels/cpu/tile.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kRowBlock = 96;  // rows that pass over a block of the panel
constexpr int kDepth = 128;    // K of a block: 32 KB of weights

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

// Rows [row, row + rows) of one panel; rows <= kRowBlock.
void multiply_panel(const LinearParams<float>& p, int panel, int row, int rows) {
  alignas(64) float sums[kRowBlock * kPanel];
  __builtin_memset(sums, 0, sizeof(float) * rows * kPanel);
  const size_t inputs = p.weight.inputs;
  const float* x = p.x + row * inputs;
  const float* weight = static_cast<const float*>(p.weight.data) + panel * inputs * kPanel;
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  for (int k = 0; k < p.weight.inputs; k += kDepth) {
    const int depth = std::min(kDepth, p.weight.inputs - k);
    for (int tile = 0; tile < tiles; ++tile) {  // of nearly equal heights
      const int begin = tile * rows / tiles, end = (tile + 1) * rows / tiles;
      multiply_rows(end - begin, {x + static_cast<size_t>(begin) * inputs + k, inputs},
                    {weight + static_cast<size_t>(k) * kPanel, kPanel},
                    {sums + begin * kPanel, kPanel}, depth, kPanel, [](int) {});
    }
  }
  finish(p, row, rows, panel * kPanel, sums);
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void linear(cpu::Stream<isa>& stream, const LinearParams<T>& p) {
  const int panels = (p.weight.outputs + kPanel - 1) / kPanel;
  const int blocks = (p.rows + cpu::kRowBlock - 1) / cpu::kRowBlock;
  const cpu::Range share = stream.share(panels * blocks);
  for (int item = share.begin; item < share.end; ++item) {
    const int row = item % blocks * cpu::kRowBlock;
    cpu::multiply_panel(p, item / blocks, row, std::min(cpu::kRowBlock, p.rows - row));
  }
  stream.barrier();
}

template void linear(cpu::Stream<cpu::Isa::DECODING_ISA>&, const LinearParams<float>&);

}  // namespace decoding
