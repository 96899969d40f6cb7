// Each thread copies, or rounds, its tokens. The contract is in packed.h.
#include "kernels/attention/packed.h"
#include "kernels/cpu/bfloat16.h"
#include "kernels/cpu/stream.h"

namespace decoding {

template <typename T, typename C, cpu::Isa isa>
void store_shared(cpu::Stream<isa>& stream, const StoreSharedParams<T, C>& p) {
  const size_t dim = p.head_dim, cells = size_t{kPageSize} * p.pool.pages;
  const cpu::Range tokens = stream.share(p.tokens);
  for (int token = tokens.begin; token < tokens.end; ++token) {
    if (p.cells[token] < 0) continue;
    for (int head = 0; head < p.heads; ++head) {
      const size_t from = static_cast<size_t>(token) * p.stride + head * dim;
      const size_t to = (head * cells + p.cells[token]) * dim;
      cpu::for_vectors(p.head_dim, [&](int d, auto... tail) {
        cpu::store(p.pool.k + to + d, cpu::load(p.k + from + d, tail...), tail...);
        cpu::store(p.pool.v + to + d, cpu::load(p.v + from + d, tail...), tail...);
      });
    }
  }
  stream.barrier();
}

template void store_shared(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                           const StoreSharedParams<float, float>&);
template void store_shared(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                           const StoreSharedParams<float, BFloat16>&);

}  // namespace decoding
