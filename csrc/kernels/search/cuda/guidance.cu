// The rows of a step with guidance. The contract is in guidance.h.
#include "kernels/cuda/launch.cuh"
#include "kernels/search/guidance.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 64;

// A block for each row that is searched.
__global__ void __launch_bounds__(kThreads)
    unconditional_rows_kernel(const UnconditionalRowsParams p) {
  wait_for_previous();
  let_next_start();
  const StepState state = *p.state;
  const int row = blockIdx.x, searched = p.sentences * p.beams;
  const int i = row / p.beams, beam = row % p.beams;
  const bool goes_on = i < state.active_count;
  const ActiveSentence sentence = p.active[goes_on ? i : 0];
  const ActiveSentence twin = unconditional_twin(p, sentence);
  if (threadIdx.x == 0) {
    if (row == 0) *p.all_state = {state.number, p.sentences + state.active_count};
    const int id = p.ids[goes_on ? row : beam], before = sentence.number - 1;
    p.all_active[i] = sentence;
    p.all_active[p.sentences + i] = twin;
    p.all_ids[row] = id;
    p.all_ids[searched + row] = before == 0 ? p.unconditional_ids[sentence.id] : id;
    p.all_positions[row] = p.prompt_lengths[sentence.id] + before;
    p.all_positions[searched + row] = p.prompt_lengths[twin.id] + before;
  }
  if (!goes_on) return;
  const int64_t table = int64_t{sentence.table()} * p.total_rows;
  const int slot = sentence.id * p.beams + beam, distance = (twin.id - sentence.id) * p.beams;
  const int32_t* from = p.cache_indirection + (table + slot) * p.history;
  int32_t* to = p.cache_indirection + (table + slot + distance) * p.history;
  for (int t = threadIdx.x; t < sentence.position; t += kThreads) to[t] = from[t] + distance;
}

}  // namespace
}  // namespace cuda

void unconditional_rows(cuda::Stream& stream, const UnconditionalRowsParams& p) {
  cuda::launch(stream, cuda::unconditional_rows_kernel, dim3(p.sentences * p.beams),
               dim3(cuda::kThreads), 0, p);
}

}  // namespace decoding
