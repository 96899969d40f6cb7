// The rows of a step with guidance. The contract is in guidance.h.
#include "kernels/cuda/launch.cuh"
#include "kernels/search/guidance.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 64;

// A block for each row that is searched.
__global__ void __launch_bounds__(kThreads) shadow_rows_kernel(const ShadowRowsParams p) {
  wait_for_previous();
  let_next_start();
  const StepState now = *p.now;
  const int row = blockIdx.x, searched = p.sentences * p.beams;
  const int i = row / p.beams, beam = row % p.beams;
  const bool goes_on = i < now.live_count;
  const int sentence = p.live[goes_on ? i : 0], shadow = p.shadow[sentence];
  if (threadIdx.x == 0) {
    if (row == 0) *p.all_now = {now.number, now.position, p.sentences + now.live_count};
    const int id = p.ids[goes_on ? row : beam];
    p.all_live[i] = sentence;
    p.all_live[p.sentences + i] = shadow;
    p.all_ids[row] = id;
    p.all_ids[searched + row] = now.number == 1 ? p.shadow_ids[sentence] : id;
    p.all_at[row] = p.first[sentence] + now.number - 1;
    p.all_at[searched + row] = p.first[shadow] + now.number - 1;
  }
  if (!goes_on) return;
  const int64_t table = int64_t{now.number % 2} * p.total_slots;
  const int slot = sentence * p.beams + beam, behind = (shadow - sentence) * p.beams;
  const int32_t* from = p.slots + (table + slot) * p.history;
  int32_t* to = p.slots + (table + slot + behind) * p.history;
  for (int t = threadIdx.x; t < now.position; t += kThreads) to[t] = from[t] + behind;
}

}  // namespace
}  // namespace cuda

void shadow_rows(cuda::Stream& stream, const ShadowRowsParams& p) {
  cuda::launch(stream, cuda::shadow_rows_kernel, dim3(p.sentences * p.beams), dim3(cuda::kThreads),
               0, p);
}

}  // namespace decoding
