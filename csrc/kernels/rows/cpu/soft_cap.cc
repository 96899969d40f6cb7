#include "kernels/rows/soft_cap.h"

#include "kernels/cpu/simd.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kBlock = 512;  // columns that a thread takes at a time: few rows are shared out too

void cap_columns(float* x, int cols, float cap) {
  const Floats scale = broadcast(1.0f / cap);
  for_vectors(cols, [&](int c, auto... count) {
    store(x + c, cap * tanh(load(x + c, count...) * scale), count...);
  });
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void soft_cap(cpu::Stream<isa>& stream, const CapParams<T>& p) {
  const int blocks = (p.cols + cpu::kBlock - 1) / cpu::kBlock;
  const cpu::Range mine = stream.share(p.rows * blocks);
  for (int i = mine.begin; i < mine.end; ++i) {
    const int64_t row = i / blocks;
    const int first = i % blocks * cpu::kBlock;
    cpu::cap_columns(p.x + row * p.stride + first, std::min(cpu::kBlock, p.cols - first), p.cap);
  }
  stream.barrier();
}

template void soft_cap(cpu::Stream<cpu::Isa::DECODING_ISA>&, const CapParams<float>&);

}  // namespace decoding
