#include <algorithm>

#include "kernels/cuda/occupancy.cuh"
#include "kernels/rows/cuda/dropout.cuh"
#include "kernels/rows/cuda/row_packed.cuh"
#include "kernels/rows/dropout.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 256;

template <int pack, typename T>
__global__ void __launch_bounds__(kThreads) dropout_kernel(const DropoutParams<T> p) {
  wait_for_previous();
  let_next_start();
  const int64_t step = int64_t{gridDim.x} * kThreads * pack;
#pragma unroll 2
  for (int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * pack; at < p.elements;
       at += step) {
    float x[pack];
    Packed<T, pack>::load(p.x + at).unpack(x);
    drop(p.dropout, at, x);
    Packed<T, pack>::of(x).store(p.y + at);
  }
}

template <int pack, typename T>
void start(Stream& stream, const DropoutParams<T>& p) {
  const auto kernel = dropout_kernel<pack, T>;
  const int64_t needed = (p.elements + kThreads * pack - 1) / (kThreads * pack);
  const int64_t most = 4 * most_blocks(stream, kernel, kThreads);
  launch(stream, kernel, static_cast<int>(std::min(needed, most)), kThreads, 0, p);
}

}  // namespace
}  // namespace cuda

template <typename T>
void dropout(cuda::Stream& stream, const DropoutParams<T>& p) {
  if (p.elements == 0) return;
  const bool aligned = cuda::aligned16<T>(p.x, p.elements) && cuda::aligned16<T>(p.y, p.elements);
  aligned ? cuda::start<16 / sizeof(T)>(stream, p) : cuda::start<1>(stream, p);
}

#define INSTANTIATE(T) template void dropout(cuda::Stream&, const DropoutParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
