// Bookkeeping of active rows, where it is not part of the selection. The contract is in update.h.
#include "kernels/cuda/launch.cuh"
#include "kernels/search/shared/append_row.h"
#include "kernels/search/update.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kGatherThreads = 512;

// A block to each sentence, a thread to its rows.
__global__ void __launch_bounds__(kThreads) update_rows_kernel(const UpdateRowsParams p) {
  wait_for_previous();
  let_next_start();
  const int i = blockIdx.x;
  if (i >= p.state->active_count) return;
  bool all_ended = true;
  for (int beam = threadIdx.x; beam < p.beams; beam += kThreads) {
    all_ended &= append_token(p, i, beam);
  }
  if (__syncthreads_and(all_ended) && threadIdx.x == 0) p.done[p.active[i].id] = 1;
}

// One block: what stays moves up, so many sentences at a time.
__global__ void __launch_bounds__(kGatherThreads) gather_active_kernel(const GatherActiveParams p) {
  __shared__ int places[kGatherThreads / 32];
  wait_for_previous();
  let_next_start();
  const StepState state = *p.state;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int kept = 0;
  for (int begin = 0; begin < state.active_count; begin += kGatherThreads) {
    const int i = begin + static_cast<int>(threadIdx.x);
    const ActiveSentence sentence = i < state.active_count ? p.active[i] : ActiveSentence{};
    const bool stays = i < state.active_count && p.done[sentence.id] == 0;
    const unsigned votes = __ballot_sync(0xFFFFFFFFu, stays);
    if (lane == 0) places[warp] = __popc(votes);
    __syncthreads();  // all have read their part of `active`, too
    int place = kept + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < kGatherThreads / 32; ++w) {
      if (w < warp) place += places[w];
      kept += places[w];
    }
    __syncthreads();
    if (!stays) continue;
    p.active[place] = sentence.next();
    const int32_t* last = p.tokens + int64_t{sentence.number - 1} * p.total_rows;
    for (int beam = 0; beam < p.beams; ++beam) {
      const int row = place * p.beams + beam;
      p.ids[row] = last[sentence.id * p.beams + beam];
      p.positions[row] = p.prompt_lengths[sentence.id] + sentence.number;
      p.random_row[row] = p.config.sentences[sentence.id].random_first + beam;
    }
  }
  if (threadIdx.x > 0) return;
  const StepState next = {state.number + 1, kept};
  *p.state = next;
  if (p.host_state != nullptr) *p.host_state = next;
}

}  // namespace
}  // namespace cuda

void update_rows(cuda::Stream& stream, const UpdateRowsParams& p) {
  cuda::launch(stream, cuda::update_rows_kernel, dim3(p.sentences), dim3(cuda::kThreads), 0, p);
}

void gather_active(cuda::Stream& stream, const GatherActiveParams& p) {
  cuda::launch(stream, cuda::gather_active_kernel, dim3(1), dim3(cuda::kGatherThreads), 0, p);
}

}  // namespace decoding
