#include "kernels/embed.h"

#include "kernels/cpu/normalize.h"
#include "kernels/cpu/stream.h"
#include "kernels/linear.h"

namespace decoding {
namespace cpu {
namespace {

float widened(float x) { return x; }
float widened(uint16_t x) { return __builtin_bit_cast(float, uint32_t{x} << 16); }  // bfloat16

// A token's row of the table: `group` numbers that lie together begin `line` behind the last ones.
template <typename Number>
struct TokenRow {
  const Number* data;
  int group, line;

  Floats load(int c, int count = kLanes) const {
    Floats values = {};
    for (int i = 0; i < count; ++i) {
      values[i] = widened(data[(c + i) / group * line + (c + i) % group]);
    }
    return values;
  }
};

template <typename Number>
TokenRow<Number> token_row(const TokenTable& table, int64_t token, int64_t hidden) {
  const auto* data = static_cast<const Number*>(table.data);
  if (!table.panels) return {data + token * hidden, 1, 1};
  const int group = panel_group(table.kind), line = group * kPanel;
  const int64_t lines = (hidden + group - 1) / group;
  return {data + token / kPanel * lines * line + token % kPanel * group, group, line};
}

template <typename Number>
void embed_row(const EmbedParams<float>& p, int r) {
  const size_t hidden = p.hidden;
  const TokenRow<Number> token = token_row<Number>(p.tokens, p.ids[r], hidden);
  const float* position =
      p.position_table == nullptr ? nullptr : p.position_table + p.at[r] * hidden;
  float* y = p.y + r * hidden;
  for_vectors(p.hidden, [&](int c, auto... count) {
    const Floats shift = position == nullptr ? Floats{} : load(position + c, count...);
    store(y + c, fma(p.scale, token.load(c, count...), shift), count...);
  });
  if (p.norm.gamma != nullptr) normalize(y, p.norm, y, p.hidden);
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void embed(cpu::Stream<isa>& stream, const EmbedParams<T>& p) {
  const cpu::Range rows = stream.share(p.rows);
  for (int r = rows.begin; r < rows.end; ++r) {
    p.tokens.kind == WeightKind::float32 ? cpu::embed_row<float>(p, r)
                                         : cpu::embed_row<uint16_t>(p, r);
  }
  stream.barrier();
}

template void embed(cpu::Stream<cpu::Isa::DECODING_ISA>&, const EmbedParams<float>&);

}  // namespace decoding
