// x = cap * tanh(x / cap): a thread for each 16 bytes; the last ones of a row may be fewer.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/rows/soft_cap.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 256;

template <int pack, typename T>
__global__ void __launch_bounds__(kThreads) soft_cap_kernel(const CapParams<T> p, float scale) {
  wait_for_previous();
  let_next_start();
  const int col = (blockIdx.y * kThreads + threadIdx.x) * pack;
  T* x = p.x + int64_t{blockIdx.x} * p.stride + col;
  const auto capped = [&](float value) { return from_float<T>(p.cap * tanhf(value * scale)); };
  if (col + pack <= p.cols) {
    auto values = Vector<T, pack>::load(x);
#pragma unroll
    for (int i = 0; i < pack; ++i) values.values[i] = capped(values[i]);
    values.store(x);
  } else {
    for (int i = 0; i < p.cols - col; ++i) x[i] = capped(to_float(x[i]));
  }
}

}  // namespace
}  // namespace cuda

template <typename T>
void soft_cap(cuda::Stream& stream, const CapParams<T>& p) {
  if (p.rows == 0) return;
  constexpr int kPack = 16 / sizeof(T);
  const bool aligned = cuda::aligned16<T>(p.x, p.stride);
  const int columns = cuda::kThreads * (aligned ? kPack : 1);
  cuda::launch(stream, aligned ? cuda::soft_cap_kernel<kPack, T> : cuda::soft_cap_kernel<1, T>,
               dim3(p.rows, (p.cols + columns - 1) / columns), dim3(cuda::kThreads), 0, p,
               1.0f / p.cap);
}

#define INSTANTIATE(T) template void soft_cap(cuda::Stream&, const CapParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
