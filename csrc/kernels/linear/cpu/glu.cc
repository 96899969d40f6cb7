#include "kernels/linear/glu.h"

#include "kernels/cpu/activate.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kBlock = 512;  // columns that a thread takes at a time: few rows are shared out too

template <Activation activation>
void gate_columns(const float* gate, const float* up, float* y, int cols) {
  for_vectors(cols, [&](int c, auto... count) {
    store(y + c, activate<activation>(load(gate + c, count...)) * load(up + c, count...), count...);
  });
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void gate(cpu::Stream<isa>& stream, const GateParams<T>& p) {
  const int blocks = (p.cols + cpu::kBlock - 1) / cpu::kBlock;
  const cpu::Range mine = stream.share(p.rows * blocks);
  cpu::with_activation(p.activation, [&]<Activation activation>() {
    for (int i = mine.begin; i < mine.end; ++i) {
      const int64_t row = i / blocks;
      const int first = i % blocks * cpu::kBlock;
      const float* x = p.x + 2 * row * p.cols + first;
      cpu::gate_columns<activation>(x, x + p.cols, p.y + row * p.cols + first,
                                    std::min(cpu::kBlock, p.cols - first));
    }
  });
  stream.barrier();
}

template void gate(cpu::Stream<cpu::Isa::DECODING_ISA>&, const GateParams<float>&);

}  // namespace decoding
