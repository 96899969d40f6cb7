// Panels are the outer loop and rows the inner one, so that each weight comes from memory once. K
// goes in blocks, small enough that a block of the panel stays in the first-level cache while all
// rows pass over it. Each block is added up apart, which also keeps the rounding errors of long
// sums small.
#include "kernels/linear.h"

#include "kernels/cpu/normalize.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/tile.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kRowBlock = 96;  // most rows that pass over a block of the panel
constexpr int kDepth = 64;     // K of a block: 16 KB of weights

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

// sums += x weight for one block of a panel. Meanwhile the tiles ask for the next block, each for
// its part of every line of four cache lines, so that requests spread evenly over the time there
// is: memory then is never idle, and never has more to do than it can queue.
void multiply_block(Rows<const float> x, int rows, const float* weight, int depth, float* sums) {
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  const Prefetch<4> next{{weight + kDepth * kPanel, kPanel}};
  for (int tile = 0; tile < tiles; ++tile) {  // of nearly equal heights
    const int begin = tile * rows / tiles, end = (tile + 1) * rows / tiles;
    const auto multiply = [&](auto prefetch) {
      multiply_rows(end - begin, {x.data + begin * x.stride, x.stride}, {weight, kPanel},
                    {sums + begin * kPanel, kPanel}, depth, kPanel, prefetch);
    };
    if (tiles == 1) {
      multiply(next);
    } else if (tiles <= 3 && tile < 2) {
      multiply(next.part<2>(2 * tile));
    } else if (tiles > 3 && tile < 4) {
      multiply(next.part<1>(tile));
    } else {
      multiply(Prefetch<0>{});
    }
  }
}

// Rows [row, row + rows) of one panel; rows <= kRowBlock.
void multiply_panel(const LinearParams<float>& p, int panel, int row, int rows) {
  alignas(64) float sums[kRowBlock * kPanel];
  __builtin_memset(sums, 0, sizeof(float) * rows * kPanel);
  const size_t inputs = p.weight.inputs;
  const float* weight = static_cast<const float*>(p.weight.data) + panel * inputs * kPanel;
  for (size_t k = 0; k < inputs; k += kDepth) {
    const int depth = std::min<size_t>(kDepth, inputs - k);
    multiply_block({p.x + row * inputs + k, inputs}, rows, weight + k * kPanel, depth, sums);
  }
  finish(p, row, rows, panel * kPanel, sums);
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void linear(cpu::Stream<isa>& stream, const LinearParams<T>& params) {
  LinearParams<T> p = params;
  if (p.norm.gamma != nullptr) {
    const cpu::Range rows = stream.share(p.rows);
    for (size_t r = rows.begin, cols = p.weight.inputs; r < static_cast<size_t>(rows.end); ++r) {
      cpu::normalize(p.x + r * cols, p.norm, p.normed + r * cols, p.weight.inputs);
    }
    stream.barrier();
    p.x = p.normed;
  }
  const int panels = (p.weight.outputs + kPanel - 1) / kPanel;
  // Rows part where the panels alone would leave threads without work.
  int rows = cpu::kRowBlock;
  const auto blocks = [&] { return (p.rows + rows - 1) / rows; };
  while (panels * blocks() < 4 * stream.size() && rows > 2 * cpu::kTileRows) rows /= 2;
  const cpu::Range share = stream.share(panels * blocks());
  for (int item = share.begin; item < share.end; ++item) {
    const int row = item % blocks() * rows;
    cpu::multiply_panel(p, item / blocks(), row, std::min(rows, p.rows - row));
  }
  stream.barrier();
}

template void linear(cpu::Stream<cpu::Isa::DECODING_ISA>&, const LinearParams<float>&);

}  // namespace decoding
