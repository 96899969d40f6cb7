// The contract is in join.h.
#include "kernels/cuda/launch.cuh"
#include "kernels/search/join.h"
#include "kernels/search/shared/join.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 256;

// A block to each sentence.
__global__ void __launch_bounds__(kThreads) join_kernel(const JoinParams p) {
  wait_for_previous();
  let_next_start();
  const JoiningSentence joining = p.joining[blockIdx.x];
  if (threadIdx.x == 0) join_sentence(p, blockIdx.x, p.state->active_count);
  for (int beam = threadIdx.x; beam < p.beams; beam += kThreads) join_row(p, joining.id, beam);
  for (int table = 0; table < 2; ++table) {
    int32_t* history =
        p.cache_indirection + (int64_t{table} * p.total_rows + joining.id * p.beams) * p.history;
    for (int i = threadIdx.x; i < p.beams * p.history; i += kThreads) {
      history[i] = first_cache_row(p, joining, i / p.history, i % p.history);
    }
  }
}

// When all blocks of join_kernel have read it.
__global__ void count_kernel(StepState* state, int count) {
  wait_for_previous();
  let_next_start();
  state->active_count += count;
}

// A thread to each row.
__global__ void __launch_bounds__(kThreads) fill_rows_kernel(const FillRowsParams p) {
  wait_for_previous();
  let_next_start();
  const int row = blockIdx.x * kThreads + threadIdx.x;
  if (row < p.state->active_count * p.beams) fill_row(p, row / p.beams, row % p.beams);
}

}  // namespace
}  // namespace cuda

void join_sentences(cuda::Stream& stream, const JoinParams& p) {
  cuda::launch(stream, cuda::join_kernel, dim3(p.count), dim3(cuda::kThreads), 0, p);
  cuda::launch(stream, cuda::count_kernel, dim3(1), dim3(1), 0, p.state, p.count);
}

void fill_rows(cuda::Stream& stream, const FillRowsParams& p) {
  const int blocks = (p.sentences * p.beams + cuda::kThreads - 1) / cuda::kThreads;
  cuda::launch(stream, cuda::fill_rows_kernel, dim3(blocks), dim3(cuda::kThreads), 0, p);
}

}  // namespace decoding
