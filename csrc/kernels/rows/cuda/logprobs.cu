#include "kernels/rows/cuda/log_sum.cuh"
#include "kernels/rows/logprobs.h"

namespace decoding {
namespace cuda {
namespace {

// A thread's columns, beside their log-sum-exp.
struct Ranked {
  float own;       // the label's logit
  int rank = 0;    // columns that are not below it
  int argmax = 0;  // the lowest of the largest
  float largest = kNoScore;

  template <int count>
  __device__ __forceinline__ void add(int col, const float (&x)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      rank += x[i] >= own;
      // A row's first columns may come last: see Pieces.
      if (x[i] > largest || (x[i] == largest && col + i < argmax)) {
        largest = x[i];
        argmax = col + i;
      }
    }
  }
};

template <typename T, typename Team>
__device__ __forceinline__ LabelScore label_score(Team& team, const LogSum<T>& part,
                                                  const Ranked& ranked) {
  const LogSum<T> all = joined(team, part);
  float rank[1] = {static_cast<float>(ranked.rank)};  // exact: vocabularies are below 2^24
  team.template reduce<Sum>(rank);
  float column[1] = {ranked.largest == all.peak ? -static_cast<float>(ranked.argmax) : -INFINITY};
  team.template reduce<Max>(column);
  return {ranked.own - all.peak - logf(all.sum), static_cast<int>(rank[0]),
          static_cast<int>(-column[0])};
}

template <typename Make, typename T>
__global__ void __launch_bounds__(kRowThreads)
    label_logprobs_kernel(const LabelLogprobsParams<T> p) {
  auto team = Make::make();
  wait_for_previous();
  let_next_start();
  const int r = team.unit * Make::Team::kRows + team.row;
  const int label = r < p.rows ? p.labels[r] : kIgnored;
  const T* row = p.logits + int64_t{r} * p.stride;
  LogSum<T> part;
  Ranked ranked{};
  if (label != kIgnored) {
    ranked.own = to_float(row[label]);
    part = own_log_sum(row, p.vocab, team.rank, team.size,
                       [&](int col, const auto& x) { ranked.add(col, x); });
  }
  const LabelScore found = label_score(team, part, ranked);
  if (team.rank != 0 || r >= p.rows) return;
  p.y[r] = label == kIgnored ? kNoLabel : found;
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
