// Where rows' histories lie when a search begins. The contract is in update.h.
#include "kernels/cuda/launch.cuh"
#include "kernels/search/update.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 128;

// A block to each row of both tables.
__global__ void __launch_bounds__(kThreads)
    reset_cache_indirection_kernel(const ResetCacheIndirectionParams p) {
  wait_for_previous();
  let_next_start();
  const int row = blockIdx.x % p.rows;
  int32_t* history = p.cache_indirection + int64_t{blockIdx.x} * p.history;
  for (int t = threadIdx.x; t < p.history; t += kThreads) {
    history[t] = t < p.prefix ? row / p.beams * p.beams : row;
  }
}

}  // namespace
}  // namespace cuda

void reset_cache_indirection(cuda::Stream& stream, const ResetCacheIndirectionParams& p) {
  cuda::launch(stream, cuda::reset_cache_indirection_kernel, dim3(2 * p.rows), dim3(cuda::kThreads),
               0, p);
}

}  // namespace decoding
