#include "kernels/rows/embed.h"

#include "kernels/cpu/normalize.h"
#include "kernels/cpu/stream.h"
#include "kernels/linear/linear.h"

namespace decoding {
namespace cpu {
namespace {

float widened(float x) { return x; }
float widened(uint16_t x) { return __builtin_bit_cast(float, uint32_t{x} << 16); }  // bfloat16

// A token's row of the table: `kGroup` numbers that are adjacent begin `kLine` after the last
// ones.
template <typename Number, bool panels>
struct TokenRow {
  static constexpr int kGroup = panels ? sizeof(float) / sizeof(Number) : 1;
  static constexpr int kLine = panels ? kGroup * kPanel : 1;
  const Number* data;

  TokenRow(const void* table, int64_t token, int64_t hidden) {
    const int64_t panel = (hidden + kGroup - 1) / kGroup * kLine;
    data = static_cast<const Number*>(table) +
           (panels ? token / kPanel * panel + token % kPanel * kGroup : token * hidden);
  }

  Floats load(int c, int count = kLanes) const {
    Floats values = {};
    for (int i = 0; i < count; ++i) {
      values[i] = widened(data[(c + i) / kGroup * kLine + (c + i) % kGroup]);
    }
    return values;
  }
};

template <typename Number, bool panels>
void embed_row(const EmbedParams<float>& p, int r) {
  const size_t hidden = p.hidden;
  const TokenRow<Number, panels> token(p.tokens.data, p.ids[r] - p.tokens.first, hidden);
  const float* position =
      p.position_table == nullptr ? nullptr : p.position_table + p.positions[r] * hidden;
  float* y = p.y + r * hidden;
  for_vectors(p.hidden, [&](int c, auto... count) {
    const Floats shift = position == nullptr ? Floats{} : load(position + c, count...);
    store(y + c, fma(p.scale, token.load(c, count...), shift), count...);
  });
  if (p.norm.gamma != nullptr) normalize(y, p.norm, y, p.hidden);
}

template <typename Number>
void embed_rows(const EmbedParams<float>& p, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    if (!p.tokens.holds(p.ids[r])) {
      std::fill_n(p.y + static_cast<size_t>(r) * p.hidden, p.hidden, 0.0f);
      continue;
    }
    p.tokens.panels ? embed_row<Number, true>(p, r) : embed_row<Number, false>(p, r);
  }
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void embed(cpu::Stream<isa>& stream, const EmbedParams<T>& p) {
  const cpu::Range rows = stream.share(p.rows);
  p.tokens.kind == WeightKind::float32 ? cpu::embed_rows<float>(p, rows)
                                       : cpu::embed_rows<uint16_t>(p, rows);
  stream.barrier();
}

template void embed(cpu::Stream<cpu::Isa::DECODING_ISA>&, const EmbedParams<float>&);

}  // namespace decoding
