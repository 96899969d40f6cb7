#include "kernels/softmax.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace cpu {
namespace {

constexpr int kBlock =
    512;  // columns that are added up apart, so that errors of long sums stay small

// y = softmax(scale * x + bias) of one row; y may alias x, bias may be null.
template <typename T>
void softmax_row(const T* x, const Real<T>* bias, T* y, int cols, Real<T> scale) {
  using Vector = Lanes<T>;
  // Weights wait in y for their sum, unless it would round them.
  constexpr bool kWait = std::is_same_v<T, Real<T>>;
  const auto z = [&](int c, auto... count) {
    const Vector shift = bias != nullptr ? load(bias + c, count...) : Vector{};
    return fma(broadcast(scale), load(x + c, count...), shift);
  };
  const Vector lowest = broadcast(Real<T>(-__builtin_inf()));
  Vector top = lowest;
  for_vectors(cols, [&](int c, auto... count) {
    top = max(first_lanes(z(c, count...), lowest, count...), top);
  });
  // A row of -inf takes exp(-inf - -inf) and becomes NaN; so does one with NaN or +inf.
  const Vector highest = broadcast(max_of(top));
  Vector sum = {};
  for (int begin = 0; begin < cols; begin += kBlock) {
    Vector part = {};
    for_vectors(std::min(kBlock, cols - begin), [&](int i, auto... count) {
      const int c = begin + i;
      const Vector weight = exp(z(c, count...) - highest);
      if constexpr (kWait) store(y + c, weight, count...);
      part += first_lanes(weight, Vector{}, count...);
    });
    sum += part;
  }
  const Vector factor = broadcast(1 / sum_of(sum));
  for_vectors(cols, [&](int c, auto... count) {
    if constexpr (kWait) {
      store(y + c, load(y + c, count...) * factor, count...);
    } else {
      store(y + c, exp(z(c, count...) - highest) * factor, count...);
    }
  });
}

template <typename T>
void softmax_backward_row(const T* y, const T* dy, T* dx, int cols) {
  using Vector = Lanes<T>;
  Vector sum = {};
  for (int begin = 0; begin < cols; begin += kBlock) {
    Vector part = {};
    for_vectors(std::min(kBlock, cols - begin), [&](int i, auto... count) {
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
