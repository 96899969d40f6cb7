#include "kernels/norm.h"

#include "kernels/cpu/normalize.h"
#include "kernels/cpu/stream.h"

namespace decoding {

template <typename T, cpu::Isa isa>
void layer_norm(cpu::Stream<isa>& stream, const LayerNormParams<T>& p) {
  const cpu::Range rows = stream.share(p.rows);
  for (int r = rows.begin; r < rows.end; ++r) {
    const size_t at = static_cast<size_t>(r) * p.cols;
    const float* residual = p.residual != nullptr ? p.residual + at : nullptr;
    cpu::normalize(p.x + at, p.norm, p.y + at, p.cols, residual);
  }
  stream.barrier();
}

template void layer_norm(cpu::Stream<cpu::Isa::DECODING_ISA>&, const LayerNormParams<float>&);

}  // namespace decoding
