#include "kernels/embed.h"

#include "kernels/cpu/normalize.h"
#include "kernels/cpu/stream.h"

namespace decoding {

template <typename T, cpu::Isa isa>
void embed(cpu::Stream<isa>& stream, const EmbedParams<T>& p) {
  const size_t hidden = p.hidden;
  const cpu::Range rows = stream.share(p.rows);
  for (int r = rows.begin; r < rows.end; ++r) {
    const T* token = p.token_table + p.ids[r] * hidden;
    const T* position = p.position_table == nullptr ? nullptr : p.position_table + p.at[r] * hidden;
    T* y = p.y + r * hidden;
    cpu::for_vectors(p.hidden, [&](int c, auto... count) {
      const cpu::Floats shift =
          position == nullptr ? cpu::Floats{} : cpu::load(position + c, count...);
      cpu::store(y + c, cpu::fma(p.scale, cpu::load(token + c, count...), shift), count...);
    });
    if (p.norm.gamma != nullptr) cpu::normalize(y, p.norm, y, p.hidden);
  }
  stream.barrier();
}

template void embed(cpu::Stream<cpu::Isa::DECODING_ISA>&, const EmbedParams<float>&);

}  // namespace decoding
