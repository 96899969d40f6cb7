// A few rows times one panel of a weight (linear.h), for the operators that finish the sums in
// their own way: linear and project. Rows are prepared first, once for all panels.
#pragma once

#include <cstddef>

#include "core/types.h"
#include "kernels/cpu/stream.h"

namespace decoding::cpu {

constexpr int kRowBlock = 96;  // most rows that pass over a panel at a time

// A dot product: of a kind of weight, with or without an instruction of its own.
enum class DotKind { float32, bfloat16_wide, bfloat16, int8_wide, int8, int8_mma };

inline DotKind dot_kind(WeightKind kind, Features features) {
  if (kind == WeightKind::int8) {
    if (features.int8_mma) return DotKind::int8_mma;
    return features.int8 ? DotKind::int8 : DotKind::int8_wide;
  }
  if (kind == WeightKind::float32) return DotKind::float32;
  return features.bf16 ? DotKind::bfloat16 : DotKind::bfloat16_wide;
}

// Rows as a product reads them, `stride` bytes apart.
//   float32, bfloat16_wide: x
//   bfloat16: x, rounded
//   int8, int8_mma, int8_wide: round(127 x / a) + offset with a = max |x|; in the row's last 64
//     bytes is a / 127, or NaN where x is not finite. VNNI multiplies unsigned numbers: the offset
//     is 128, but 0 for Arm's instructions.
// Inputs are followed by zeros up to a whole vector, of weights that come in twos.
struct Operand {
  const uint8_t* rows;
  size_t stride;

  Operand from(int row) const { return {rows + row * stride, stride}; }
};

inline constexpr size_t kScalePlace = 64;  // from the end of a row

// Bytes between rows; at most what linear_scratch gives each.
inline size_t operand_stride(DotKind kind, int inputs) {
  const size_t bytes = kind == DotKind::int8 || kind == DotKind::int8_mma        ? 1
                       : kind == DotKind::bfloat16 || kind == DotKind::int8_wide ? 2
                                                                                 : 4;
  return (inputs * bytes + 63) / 64 * 64 + 64;
}

template <Isa isa>
void prepare_row(DotKind kind, const float* x, int inputs, uint8_t* to);

// Its result, for for_each_sum (panel_sums.h).
struct PanelSums {
  const float* sums;           // [rows, kPanel]; int32 where there are scales
  const float* scale;          // [columns], of int8 weights, else null
  const int32_t* weight_sums;  // [columns], of int8 weights where x has the offset 128, else null
  Operand x;
  int rows, columns;
};

// What finishes the sums of a few rows while they are in the first-level cache: any function of
// (row, sums), with `row` the first one's number among those of multiply_panel.
class Finish {
 public:
  template <typename Use>
  Finish(const Use& use)
      : use_(&use), call_([](const void* use, int row, const PanelSums& sums) {
          (*static_cast<const Use*>(use))(row, sums);
        }) {}

  void operator()(int row, const PanelSums& sums) const { call_(use_, row, sums); }

 private:
  const void* use_;
  void (*call_)(const void*, int, const PanelSums&);
};

// x[r] W[n] for `rows` <= kRowBlock rows of x and the outputs of a panel.
// sums: scratch, [rows, kPanel], aligned to 64 bytes.
template <Isa isa>
void multiply_panel(DotKind kind, const LinearWeight& weight, int panel, const Operand& x, int rows,
                    float* sums, const Finish& finish);

}  // namespace decoding::cpu
