#include "kernels/softmax.h"

#include "kernels/cpu/softmax_row.h"
#include "kernels/cpu/stream.h"

namespace decoding {

template <typename T, cpu::Isa isa>
void softmax(cpu::Stream<isa>& stream, const SoftmaxParams<T>& p) {
  const cpu::Range rows = stream.share(p.rows);
  for (int r = rows.begin; r < rows.end; ++r) {
    const size_t at = static_cast<size_t>(r) * p.cols;
    cpu::softmax_row(p.x + at, p.bias, p.y + at, p.cols, p.scale);
  }
  stream.barrier();
}

template void softmax(cpu::Stream<cpu::Isa::DECODING_ISA>&, const SoftmaxParams<float>&);

}  // namespace decoding
