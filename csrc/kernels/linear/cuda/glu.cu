// y = activation(gate) * up: a thread for each 16 bytes of y.
#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/linear/glu.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 128;

template <Activation activation, int pack, typename T>
__global__ void __launch_bounds__(kThreads) gate_kernel(const GateParams<T> p) {
  wait_for_previous();
  let_next_start();
  const int64_t row = blockIdx.x;
  const int col = (blockIdx.y * kThreads + threadIdx.x) * pack;
  if (col >= p.cols) return;
  const T* x = p.x + 2 * row * p.cols + col;
  const auto gate = Vector<T, pack>::load(x), up = Vector<T, pack>::load(x + p.cols);
  Vector<T, pack> y;
#pragma unroll
  for (int i = 0; i < pack; ++i)
    y.values[i] = from_float<T>(activate<T, activation>(gate[i]) * up[i]);
  y.store(p.y + row * p.cols + col);
}

template <Activation activation, typename T>
void launch_gate(Stream& stream, const GateParams<T>& p) {
  constexpr int kPack = 16 / sizeof(T);
  const bool aligned = aligned16<T>(p.x, p.cols) && aligned16<T>(p.y, p.cols);
  const int columns = kThreads * (aligned ? kPack : 1);
  launch(stream, aligned ? gate_kernel<activation, kPack, T> : gate_kernel<activation, 1, T>,
         dim3(p.rows, (p.cols + columns - 1) / columns), dim3(kThreads), 0, p);
}

}  // namespace
}  // namespace cuda

template <typename T>
void gate(cuda::Stream& stream, const GateParams<T>& p) {
  if (p.rows == 0) return;
  switch (p.activation) {
    case Activation::none:
      return cuda::launch_gate<Activation::none>(stream, p);
    case Activation::relu:
      return cuda::launch_gate<Activation::relu>(stream, p);
    case Activation::gelu:
      return cuda::launch_gate<Activation::gelu>(stream, p);
    case Activation::gelu_tanh:
      return cuda::launch_gate<Activation::gelu_tanh>(stream, p);
    case Activation::silu:
      return cuda::launch_gate<Activation::silu>(stream, p);
    case Activation::sigmoid:
      return cuda::launch_gate<Activation::sigmoid>(stream, p);
  }
}

#define INSTANTIATE(T) template void gate(cuda::Stream&, const GateParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
