// Bookkeeping of live rows, where it is not part of the selection. The contract is in update.h.
#include "kernels/cuda/launch.cuh"
#include "kernels/search/shared/append_row.h"
#include "kernels/search/update.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kGatherThreads = 512;

// A block to each sentence, a thread to its rows.
__global__ void __launch_bounds__(kThreads) accept_tokens_kernel(const AcceptTokensParams p) {
  wait_for_previous();
  let_next_start();
  const int i = blockIdx.x;
  if (i >= p.now->live_count) return;
  bool all_ended = true;
  for (int beam = threadIdx.x; beam < p.beams; beam += kThreads) {
    all_ended &= accept_token(p, i, beam);
  }
  if (__syncthreads_and(all_ended) && threadIdx.x == 0) p.done[p.live[i]] = 1;
}

// One block: what stays moves up, so many sentences at a time.
__global__ void __launch_bounds__(kGatherThreads) gather_live_kernel(const GatherLiveParams p) {
  __shared__ int places[kGatherThreads / 32];
  wait_for_previous();
  let_next_start();
  const StepState now = *p.now;
  const int32_t* last = p.tokens + int64_t{now.number - 1} * p.slots;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int kept = 0;
  for (int begin = 0; begin < now.live_count; begin += kGatherThreads) {
    const int i = begin + static_cast<int>(threadIdx.x);
    const int sentence = i < now.live_count ? p.live[i] : 0;
    const bool stays = i < now.live_count && p.done[sentence] == 0;
    const unsigned votes = __ballot_sync(0xFFFFFFFFu, stays);
    if (lane == 0) places[warp] = __popc(votes);
    __syncthreads();  // all have read their part of `live`, too
    int place = kept + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < kGatherThreads / 32; ++w) {
      if (w < warp) place += places[w];
      kept += places[w];
    }
    __syncthreads();
    if (!stays) continue;
    p.live[place] = sentence;
    for (int beam = 0; beam < p.beams; ++beam) {
      const int row = place * p.beams + beam;
      p.ids[row] = last[sentence * p.beams + beam];
      p.at[row] = p.first[sentence] + now.number;
      p.random_row[row] = p.sentence_rules[sentence].random_first + beam;
    }
  }
  if (threadIdx.x > 0) return;
  const StepState next = {now.number + 1, now.position + 1, kept};
  *p.now = next;
  if (p.seen != nullptr) *p.seen = next;
}

}  // namespace
}  // namespace cuda

void accept_tokens(cuda::Stream& stream, const AcceptTokensParams& p) {
  cuda::launch(stream, cuda::accept_tokens_kernel, dim3(p.sentences), dim3(cuda::kThreads), 0, p);
}

void gather_live(cuda::Stream& stream, const GatherLiveParams& p) {
  cuda::launch(stream, cuda::gather_live_kernel, dim3(1), dim3(cuda::kGatherThreads), 0, p);
}

}  // namespace decoding
