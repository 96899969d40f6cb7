// Rows on their way into a product: through its norm, and prepared for its kind of weight.
#pragma once

#include <algorithm>

#include "kernels/cpu/normalize.h"
#include "kernels/linear/cpu/panel.h"
#include "kernels/linear/linear.h"

namespace decoding::cpu {
namespace {

// So much every thread prepares for itself: 8 rows of 512 inputs, 2 of 2048. It takes less time
// than a barrier.
constexpr int kOwnBytes = 18 << 10;

template <Isa isa>
void prepare_rows(DotKind kind, const LinearParams<float>& p, Range rows, Range mine, uint8_t* to) {
  alignas(64) float own[kOwnBytes / sizeof(float)];
  const size_t inputs = p.weight.inputs, stride = operand_stride(kind, p.weight.inputs);
  for (int r = rows.begin; r < rows.end; ++r, to += stride) {
    const float* x = p.x + r * inputs;
    if (p.norm.gamma != nullptr) {
      // One thread alone writes a row for others to see.
      float* normed = mine.holds(r) ? p.normed + r * inputs : own;
      normalize(x, p.norm, normed, p.weight.inputs);
      x = normed;
    }
    prepare_row<isa>(kind, x, p.weight.inputs, to);
  }
}

// Calls use(rows, first, count) on every thread, with `count` prepared rows from row `first` on,
// until all have had their turn. Ends with a barrier. Of the parameters those of x are used.
template <Isa isa, typename Use>
void with_operand(Stream<isa>& stream, const LinearParams<float>& p, Use&& use) {
  const DotKind kind = dot_kind(p.weight.kind, stream.features());
  const size_t inputs = p.weight.inputs, stride = operand_stride(kind, p.weight.inputs);
  const auto as_it_is = [&](const float* x) {
    use(Operand{reinterpret_cast<const uint8_t*>(x), sizeof(float) * inputs}, 0, p.rows);
    stream.barrier();
  };
  if (kind == DotKind::float32 && p.norm.gamma == nullptr) return as_it_is(p.x);
  if (linear_scratch(p.rows, p.weight.inputs) <= kOwnBytes) {
    alignas(64) uint8_t own[kOwnBytes];
    prepare_rows<isa>(kind, p, {0, p.rows}, stream.share(p.rows), own);
    use(Operand{own, stride}, 0, p.rows);
    return stream.barrier();
  }
  if (kind == DotKind::float32) {
    const Range mine = stream.share(p.rows);
    for (int r = mine.begin; r < mine.end; ++r) {
      normalize(p.x + r * inputs, p.norm, p.normed + r * inputs, p.weight.inputs);
    }
    stream.barrier();
    return as_it_is(p.normed);
  }
  for (int first = 0; first < p.rows; first += kScratchRows) {
    const int count = std::min(kScratchRows, p.rows - first);
    const Range share = stream.share(count), mine{first + share.begin, first + share.end};
    prepare_rows<isa>(kind, p, mine, mine, p.scratch + share.begin * stride);
    stream.barrier();
    use(Operand{p.scratch, stride}, first, count);
    stream.barrier();
  }
}

}  // namespace
}  // namespace decoding::cpu
