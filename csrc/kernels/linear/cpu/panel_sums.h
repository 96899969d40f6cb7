// The sums of multiply_panel, for an epilogue.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/linear/cpu/panel.h"
#include "kernels/linear/linear.h"

namespace decoding::cpu {
namespace {

// Calls use(r, c, y, count...) for the vectors of all rows, with y = x[r] W[c, ...]: without a
// count for whole vectors, with the number of columns for a last one that is not.
template <typename Use>
inline void for_each_sum(PanelSums panel, Use use) {
  const float* from = panel.sums;
  for (int r = 0; r < panel.rows; ++r, from += kPanel) {
    if (panel.scale == nullptr) {
      for_vectors(panel.columns,
                  [&](int c, auto... count) { use(r, c, load(from + c), count...); });
      continue;
    }
    float row_scale;
    __builtin_memcpy(&row_scale, panel.x.rows + (r + 1) * panel.x.stride - kScalePlace,
                     sizeof row_scale);
    for_vectors(panel.columns, [&](int c, auto... count) {
      // The offset of x, 128, adds 128 times the sum of the weights.
      const bool offset = panel.weight_sums != nullptr;
      const Ints excess = offset ? load(panel.weight_sums + c, count...) << 7 : Ints{};
      const Floats y = floats(bits(load(from + c)) - excess) * row_scale;
      use(r, c, product(y, load(panel.scale + c, count...)), count...);
    });
  }
}

}  // namespace
}  // namespace decoding::cpu
