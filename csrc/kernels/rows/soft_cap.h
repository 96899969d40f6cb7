// x = cap * tanh(x / cap), in place: Gemma 2's logits.
#pragma once

#include "kernels/stream.h"

namespace decoding {

template <typename T>
struct CapParams {
  T* x;  // [rows, cols], rows `stride` apart
  int rows, cols, stride;
  float cap;  // above 0
};

template <typename T, cpu::Isa isa>
void soft_cap(cpu::Stream<isa>&, const CapParams<T>&);
template <typename T>
void soft_cap(cuda::Stream&, const CapParams<T>&);

}  // namespace decoding
