// Constrained beam search, one block a sentence: one thread does the bookkeeping
// (constrained.h), and all copy where the histories lie. The rules are in constrained.h.
#include "kernels/cuda/launch.cuh"
#include "kernels/search/constrained.h"
#include "kernels/search/shared/constrained.h"

namespace decoding {
namespace {

constexpr int kThreads = 256;

__global__ void constrained_kernel(const __grid_constant__ ConstrainedStepParams p) {
  __shared__ bool going;
  cuda::wait_for_previous();
  cuda::let_next_start();
  const int i = blockIdx.x;
  if (i >= p.search.state->active_count) return;
  const ConstrainedSentence sentence(p, i);
  if (threadIdx.x == 0) going = sentence.step();
  __syncthreads();
  if (going) sentence.inherit(threadIdx.x, kThreads);
}

}  // namespace

void constrained_step(cuda::Stream& stream, const ConstrainedStepParams& p) {
  cuda::launch(stream, constrained_kernel, dim3(p.sentences), dim3(kThreads), 0, p);
}

}  // namespace decoding
