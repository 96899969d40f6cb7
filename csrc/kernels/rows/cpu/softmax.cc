#include "kernels/rows/softmax.h"

#include <algorithm>

#include "kernels/cpu/softmax_row.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace cpu {
namespace {

template <typename T>
void softmax_backward_row(const T* y, const T* dy, T* dx, int cols) {
  using Vector = Lanes<T>;
  Vector sum = {};
  for (int begin = 0; begin < cols; begin += kSoftmaxBlock) {
    Vector part = {};
    for_vectors(std::min(kSoftmaxBlock, cols - begin), [&](int i, auto... count) {
      const int c = begin + i;
      part = fma(load(y + c, count...), load(dy + c, count...), part);
    });
    sum += part;
  }
  const Vector whole = broadcast(sum_of(sum));
  for_vectors(cols, [&](int c, auto... count) {
    store(dx + c, load(y + c, count...) * (load(dy + c, count...) - whole), count...);
  });
}

}  // namespace
}  // namespace cpu

template <typename T, cpu::Isa isa>
void softmax(cpu::Stream<isa>& stream, const SoftmaxParams<T>& p) {
  const cpu::Range rows = stream.share(p.rows);
  for (int r = rows.begin; r < rows.end; ++r) {
    const size_t at = static_cast<size_t>(r) * p.cols;
    cpu::softmax_row<T>(p.x + at, p.bias, p.y + at, p.cols, p.scale);
  }
  stream.barrier();
}

template <typename T, cpu::Isa isa>
void softmax_backward(cpu::Stream<isa>& stream, const SoftmaxBackwardParams<T>& p) {
  const cpu::Range rows = stream.share(p.rows);
  for (int r = rows.begin; r < rows.end; ++r) {
    const size_t at = static_cast<size_t>(r) * p.cols;
    cpu::softmax_backward_row(p.y + at, p.dy + at, p.dx + at, p.cols);
  }
  stream.barrier();
}

#define INSTANTIATE(T)                                                                  \
  template void softmax(cpu::Stream<cpu::Isa::DECODING_ISA>&, const SoftmaxParams<T>&); \
  template void softmax_backward(cpu::Stream<cpu::Isa::DECODING_ISA>&,                  \
                                 const SoftmaxBackwardParams<T>&);
DECODING_FOR_ELEMENTS(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
