// Whole vectors of D elements go to their cells, 16 bytes at a time.
#include <cstdint>

#include "kernels/attention/packed.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 256;

// One block copies a token's keys (blockIdx.y = 0) or values (1) of all heads; its reads are one
// stretch of memory. width: elements per copy, a divisor of head_dim.
template <typename T, int width>
__global__ void store_shared_kernel(const StoreSharedParams<T> p) {
  wait_for_previous();
  let_next_start();
  const int64_t token = blockIdx.x;
  if (p.cells[token] < 0) return;
  const T* from = (blockIdx.y == 0 ? p.k : p.v) + token * p.stride;
  T* to = (blockIdx.y == 0 ? p.pool.k : p.pool.v) + int64_t{p.cells[token]} * p.head_dim;
  const int64_t head_stride = int64_t{kPageSize} * p.pool.pages * p.head_dim;
  for (int i = threadIdx.x * width; i < p.heads * p.head_dim; i += kThreads * width) {
    const int head = i / p.head_dim, d = i % p.head_dim;
    Vector<T, width>::load(from + i).store(to + head * head_stride + d);
  }
}

}  // namespace
}  // namespace cuda

template <typename T>
void store_shared(cuda::Stream& stream, const StoreSharedParams<T>& p) {
  if (p.tokens == 0) return;
  constexpr int kVector = 16 / sizeof(T);
  const bool aligned = p.head_dim % kVector == 0 && cuda::aligned16<T>(p.k, p.stride) &&
                       cuda::aligned16<T>(p.v, p.stride) && cuda::aligned16<T>(p.pool.k, 0) &&
                       cuda::aligned16<T>(p.pool.v, 0);
  const auto kernel =
      aligned ? cuda::store_shared_kernel<T, kVector> : cuda::store_shared_kernel<T, 1>;
  cuda::launch(stream, kernel, dim3(p.tokens, 2), cuda::kThreads, 0, p);
}

#define INSTANTIATE(T) template void store_shared(cuda::Stream&, const StoreSharedParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
