// The contract is in scatter.h.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/scatter.h"

namespace decoding::cuda {
namespace {

constexpr int kThreads = 128;

// A block to each piece.
__global__ void __launch_bounds__(kThreads) scatter_kernel(const Piece* pieces) {
  wait_for_previous();
  let_next_start();
  const Piece piece = pieces[blockIdx.x];
  const auto* from = static_cast<const uint32_t*>(piece.from);
  auto* to = static_cast<uint32_t*>(piece.to);
  for (int64_t i = threadIdx.x; i < piece.words; i += kThreads) to[i] = from[i];
}

}  // namespace

void scatter(Stream& stream, const Piece* pieces, int count) {
  launch(stream, scatter_kernel, dim3(count), dim3(kThreads), 0, pieces);
}

}  // namespace decoding::cuda
