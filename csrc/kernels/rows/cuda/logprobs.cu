#include "kernels/rows/cuda/log_sum.cuh"
#include "kernels/rows/logprobs.h"

namespace decoding {
namespace cuda {
namespace {

template <typename Make, typename T>
__global__ void __launch_bounds__(kRowThreads)
    label_logprobs_kernel(const LabelLogprobsParams<T> p) {
  auto team = Make::make();
  wait_for_previous();
  let_next_start();
  const int r = team.unit * Make::Team::kRows + team.row;
  const int label = r < p.rows ? p.labels[r] : kIgnored;
  const T* row = p.logits + int64_t{r} * p.stride;
  LogSum<T> own;
  if (label != kIgnored) {
    own = own_log_sum(row, p.vocab, team.rank, team.size, [](int, const auto&) {});
  }
  const LogSum<T> all = joined(team, own);
  if (team.rank != 0 || r >= p.rows) return;
  p.y[r] = label == kIgnored ? 0.0f : to_float(row[label]) - all.peak - logf(all.sum);
}

}  // namespace
}  // namespace cuda

template <typename T>
void label_logprobs(cuda::Stream& stream, const LabelLogprobsParams<T>& p) {
  if (p.rows == 0) return;
  cuda::with_row_teams<T>(p.vocab, [&]<typename Make>(Make) {
    const int blocks = (p.rows + Make::kRows - 1) / Make::kRows;
    launch(stream, cuda::label_logprobs_kernel<Make, T>, blocks, cuda::kRowThreads, 0, p);
  });
}

#define INSTANTIATE(T) template void label_logprobs(cuda::Stream&, const LabelLogprobsParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
