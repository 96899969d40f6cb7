// y = x_0 + x_1 + ... + x_{n-1} + bias + residual, where x_r is the part of rank r (tensor
// parallelism, Shoeybi et al. 2019).
//
// The parts are added up in the order of ranks, in float32, and rounded once, so all ranks find the
// same bits. A rank writes its part to the memory of its stream's collective: `part<T>()`.
//
// One shot: every rank gets the parts of all, and adds them up itself; nothing is sent twice. On
// GPUs many rows take two: rank q adds up piece q of n, and all get what it has found.
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
template <typename T>
void all_reduce(cuda::SplitStream&, const AllReduceParams<T>&);

}  // namespace decoding
