// y = x_0 + x_1 + ... + x_{n-1} + bias + residual, where x_r is the part of rank r (tensor
// parallelism, Shoeybi et al. 2019).
//
// One shot: every rank reads the parts of all and adds them up in the order of ranks, so all find
// the same bits, and nothing is sent twice. A rank writes its part to the memory that its stream's
// collective shares: `part<T>()`.
#pragma once

#include "kernels/collective/split_stream.h"

namespace decoding {

template <typename T>
struct AllReduceParams {
  const float* bias = nullptr;  // [cols], may be null
  const T* residual = nullptr;  // [rows, cols], may be null
  T* y;                         // [rows, cols], may alias residual
  int rows, cols;               // of a part, too
};

template <typename T, cpu::Isa isa>
void all_reduce(cpu::SplitStream<isa>&, const AllReduceParams<T>&);

}  // namespace decoding
