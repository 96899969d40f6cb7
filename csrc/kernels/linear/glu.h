// y = activation(gate) * up: of a gated feed-forward block (Shazeer 2020) and, with sigmoid, of a
// gated linear unit (Dauphin et al. 2017).
#pragma once

#include "core/types.h"
#include "kernels/linear/linear.h"
#include "kernels/stream.h"

namespace decoding {

template <typename T>
struct GateParams {
  const T* x;      // [rows, 2 F], gate, then up
  T* y;            // [rows, F]
  int rows, cols;  // cols: F
  Activation activation;
};

template <typename T, cpu::Isa isa>
void gate(cpu::Stream<isa>&, const GateParams<T>&);
template <typename T>
void gate(cuda::Stream&, const GateParams<T>&);

// A gated product (linear.h) in two parts.
template <typename T>
LinearParams<T> before_gate(LinearParams<T> p) {
  p.y = p.gated;
  p.gated = nullptr;
  p.activation = Activation::none;
  return p;
}
template <typename T>
GateParams<T> gate_behind(const LinearParams<T>& p) {
  return {p.gated, p.y, p.rows, p.weight.outputs / 2, p.activation};
}

}  // namespace decoding
