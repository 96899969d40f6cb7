// Whole vectors of D elements go to their cells, 16 bytes at a time, or as e4m3.
#include <cstdint>

#include "kernels/attention/cuda/float8.cuh"
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

// The same to e4m3: S::lanes lanes take a head.
template <typename T, typename S>
__global__ void __launch_bounds__(kThreads)
    store_shared_float8_kernel(const StoreSharedParams<T, Float8> p) {
  if constexpr (!kConverts<Float8>) return;
  wait_for_previous();
  let_next_start();
  const int64_t token = blockIdx.x;
  const int cell = p.cells[token];
  if (cell < 0) return;
  const bool keys = blockIdx.y == 0;
  const T* from = (keys ? p.k : p.v) + token * p.stride;
  for (int head = threadIdx.x / S::lanes; head < p.heads; head += kThreads / S::lanes) {
    const size_t to = p.pool.first_cell(head) + cell;
    RowFragment<T, S> row;
    row.load(from + head * p.head_dim, p.head_dim, true);
    store_float8(row, (keys ? p.pool.k : p.pool.v) + to * p.head_dim,
                 (keys ? p.pool.k_scales : p.pool.v_scales) + to, p.head_dim);
  }
}

template <typename T>
void store(Stream& stream, const StoreSharedParams<T>& p) {
  constexpr int kVector = 16 / sizeof(T);
  const bool aligned = p.head_dim % kVector == 0 && aligned16<T>(p.k, p.stride) &&
                       aligned16<T>(p.v, p.stride) && aligned16<T>(p.pool.k, 0) &&
                       aligned16<T>(p.pool.v, 0);
  const auto kernel = aligned ? store_shared_kernel<T, kVector> : store_shared_kernel<T, 1>;
  launch(stream, kernel, dim3(p.tokens, 2), kThreads, 0, p);
}

template <typename T>
void store(Stream& stream, const StoreSharedParams<T, Float8>& p) {
  const auto kernel = p.head_dim <= 64    ? store_shared_float8_kernel<T, DecodeConfig<8, 8, 1>>
                      : p.head_dim <= 128 ? store_shared_float8_kernel<T, DecodeConfig<8, 16, 1>>
                                          : store_shared_float8_kernel<T, DecodeConfig<8, 32, 1>>;
  launch(stream, kernel, dim3(p.tokens, 2), kThreads, 0, p);
}

}  // namespace
}  // namespace cuda

template <typename T, typename C>
void store_shared(cuda::Stream& stream, const StoreSharedParams<T, C>& p) {
  if (p.tokens > 0) cuda::store(stream, p);
}

#define INSTANTIATE(T) template void store_shared(cuda::Stream&, const StoreSharedParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE
#define INSTANTIATE(T) \
  template void store_shared(cuda::Stream&, const StoreSharedParams<T, Float8>&);
DECODING_FOR_HALVES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
