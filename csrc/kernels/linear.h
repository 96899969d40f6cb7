// y = activation(x W^T + bias) + residual.
//
// W [N, K] is packed once, at load: panels of kPanel outputs, each [K, kPanel], zero behind N; so a
// product of few rows reads every weight once, in order. The order in which a sum over K is added
// up depends on K alone, never on the number of rows: a row's result never depends on its
// neighbours.
#pragma once

#include "core/types.h"
#include "kernels/stream.h"

namespace decoding {

constexpr int kPanel = 64;  // outputs in a panel

template <typename T>
struct LinearParams {
  const T* x;                   // [rows, K]
  LinearWeight weight;          // N outputs, K inputs
  const float* bias = nullptr;  // [N], may be null
  const T* residual = nullptr;  // [rows, N], may be null, may alias y
  T* y;                         // [rows, N]
  int rows;
  Activation activation = Activation::none;
};

template <typename T, cpu::Isa isa>
void linear(cpu::Stream<isa>&, const LinearParams<T>&);

}  // namespace decoding
