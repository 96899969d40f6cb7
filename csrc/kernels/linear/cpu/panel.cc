// K goes in blocks, small enough that a block of the panel stays in the first-level cache while all
// rows pass over it. Each block is added up apart, which also keeps the rounding errors of long
// sums small.
#include "kernels/linear/cpu/panel.h"

#include <algorithm>
#include <cmath>

#include "kernels/linear/cpu/dot.h"
#include "kernels/linear/cpu/mma.h"
#include "kernels/linear/linear.h"

namespace decoding::cpu {
namespace {

constexpr int kDepth = 64;  // lines of a block: 16 KB of weights

// sums += x weight for one block of a panel, and done(begin, end) for each tile of rows. Meanwhile
// the tiles ask for the next block, each for its part of every line of four cache lines, so that
// requests spread evenly over the time there is: memory then is never idle, and never has more to
// do than it can queue.
template <typename Dot, typename Done>
void multiply_block(MatrixView<const typename Dot::Left> x, int rows,
                    const typename Dot::Right* weight, int depth, typename Dot::Sum* sums,
                    Begin begin_sums, Done&& done) {
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  const auto* behind = reinterpret_cast<const std::byte*>(weight + depth * kPanel);
  const Prefetch<4> next{{behind, sizeof(float) * kPanel}};
  for (int tile = 0; tile < tiles; ++tile) {  // of nearly as many rows
    const int begin = tile * rows / tiles, end = (tile + 1) * rows / tiles;
    const auto multiply = [&](auto prefetch) {
      multiply_rows<Dot>(end - begin, {x.data + begin * x.stride, x.stride}, {weight, kPanel},
                         Into<typename Dot::Sum>{{sums + begin * kPanel, kPanel}, begin_sums},
                         depth, kPanel, prefetch);
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
    done(begin, end);
  }
}

template <typename Dot, typename Done>
void multiply(const LinearWeight& weight, int panel, const Operand& x, int rows,
              typename Dot::Sum* sums, Done&& done) {
  const size_t lines = (weight.inputs + Dot::kInputs - 1) / Dot::kInputs;
  const auto* from = static_cast<const typename Dot::Right*>(weight.data) + panel * lines * kPanel;
  const auto* left = reinterpret_cast<const typename Dot::Left*>(x.rows);
  // Integers may be added up in any order; many rows then take twice as many lines at a time.
  const bool deep = std::is_same_v<typename Dot::Sum, int32_t> && rows > 2 * kTileRows;
  const size_t block = deep ? 2 * kDepth : kDepth;
  for (size_t k = 0; k < lines; k += block) {
    const int depth = std::min(block, lines - k);
    const bool last = k + depth == lines;
    multiply_block<Dot>({left + k * Dot::kParts, x.stride / sizeof *left}, rows, from + k * kPanel,
                        depth, sums, k == 0 ? Begin::yes : Begin::no, [&](int begin, int end) {
                          if (last) done(begin, end);
                        });
  }
}

using Bytes [[gnu::vector_size(kLanes)]] = uint8_t;

// What is added to a row's integers, because instructions, or masks, ask for unsigned ones.
constexpr int offset_of([[maybe_unused]] DotKind kind) {
#if defined(DECODING_NEON)
  if (kind != DotKind::int8_wide) return 0;
#endif
  return 128;
}

// Calls use(i, codes) for all vectors of x.
template <typename Use>
float quantise(const float* x, int inputs, int offset, Use&& use) {
  Ints largest = {};  // as integers, because NaN is more than infinity there
  for_vectors(inputs, [&](int i, auto... count) {
    largest = max(largest, bits(abs(load(x + i, count...))));
  });
  const float a = __builtin_bit_cast(float, max_of(largest));
  const float steps = a > 1e-36f ? 127.0f / a : 0.0f;  // which must not be infinite
  for_vectors(inputs, [&](int i, auto... count) {
    use(i, __builtin_convertvector(nearest(load(x + i, count...) * steps) + offset, Bytes));
  });
  return std::isfinite(a) ? a / 127.0f : NAN;
}

}  // namespace

template <Isa isa>
void prepare_row(DotKind kind, const float* x, int inputs, uint8_t* to) {
  const auto set_scale = [&](float scale) {
    __builtin_memcpy(to + operand_stride(kind, inputs) - kScalePlace, &scale, sizeof scale);
  };
  switch (kind) {
    case DotKind::float32:
    case DotKind::bfloat16_wide:
      __builtin_memcpy(to, x, sizeof(float) * inputs);
      __builtin_memset(to + sizeof(float) * inputs, 0, sizeof(float));
      return;
    case DotKind::bfloat16:
#if defined(__AVX512F__) || defined(DECODING_NEON)
      for_vectors(inputs, [&](int i, auto... count) {
        const Bfloat16s rounded = round_to_bfloat16(load(x + i, count...));
        __builtin_memcpy(to + sizeof(int16_t) * i, &rounded, sizeof rounded);
      });
#endif
      return;
    case DotKind::int8:
    case DotKind::int8_mma:
      return set_scale(quantise(x, inputs, offset_of(kind), [&](int i, Bytes codes) {
        __builtin_memcpy(to + i, &codes, sizeof codes);
      }));
    case DotKind::int8_wide:
      return set_scale(quantise(x, inputs, offset_of(kind), [&](int i, Bytes codes) {
        uint32_t words[kLanes / 4];
        __builtin_memcpy(words, &codes, sizeof codes);
        for (int w = 0; w < kLanes / 4; ++w) {
          const uint32_t pairs[] = {words[w] & 0xff00ff, words[w] >> 8 & 0xff00ff};
          __builtin_memcpy(to + 2 * (i + 4 * w), pairs, sizeof pairs);
        }
      }));
  }
}

template <Isa isa>
void multiply_panel(DotKind kind, const LinearWeight& weight, int panel, const Operand& x, int rows,
                    float* sums, const Finish& finish) {
  int32_t* integers = reinterpret_cast<int32_t*>(sums);
  const int column = panel * kPanel;
  const bool scaled = weight.kind == WeightKind::int8, shifted = scaled && offset_of(kind) != 0;
  const auto done = [&](int begin, int end) {
    finish(begin, {.sums = sums + begin * kPanel,
                   .scale = scaled ? weight.scale + column : nullptr,
                   .weight_sums = shifted ? weight.sums + column : nullptr,
                   .x = x.from(begin),
                   .rows = end - begin,
                   .columns = std::min(kPanel, weight.outputs - column)});
  };
  switch (kind) {
    case DotKind::float32:
      return multiply<Float32Dot>(weight, panel, x, rows, sums, done);
    case DotKind::bfloat16_wide:
      return multiply<Bfloat16WideDot>(weight, panel, x, rows, sums, done);
    case DotKind::int8_wide:
      return multiply<Int8WideDot>(weight, panel, x, rows, integers, done);
#if defined(__AVX512F__)
    case DotKind::bfloat16:
      return multiply<Bfloat16Dot>(weight, panel, x, rows, sums, done);
#elif defined(DECODING_NEON)
    case DotKind::bfloat16:
      return multiply<Bfloat16Mma>(weight, panel, x, rows, sums, done);
    case DotKind::int8_mma:
      return multiply<Int8Mma>(weight, panel, x, rows, integers, done);
#endif
#if defined(__AVX512F__) || defined(DECODING_NEON)
    case DotKind::int8:
      return multiply<Int8Dot>(weight, panel, x, rows, integers, done);
#endif
    default:
      return;
  }
}

template void prepare_row<Isa::DECODING_ISA>(DotKind, const float*, int, uint8_t*);
template void multiply_panel<Isa::DECODING_ISA>(DotKind, const LinearWeight&, int, const Operand&,
                                                int, float*, const Finish&);

}  // namespace decoding::cpu
