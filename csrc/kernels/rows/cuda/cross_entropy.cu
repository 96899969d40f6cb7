#include "kernels/rows/cross_entropy.h"
#include "kernels/rows/cuda/log_sum.cuh"
#include "kernels/rows/cuda/targets.cuh"

namespace decoding {
namespace cuda {
namespace {

__device__ void report(LabelFault* fault, const Targets<float>& targets, int64_t label) {
  if (fault == nullptr) return;
  fault->label = label;
  fault->ignored = targets.ignored;
  fault->classes = targets.classes;
  __threadfence_system();
  *reinterpret_cast<volatile int*>(&fault->found) = 1;
}

// The loss of a row of sums `all`. differences: sum_c w[c] (x[c] - near), see below.
template <typename T>
__device__ __forceinline__ float loss_of(const Targets<float>& targets, int64_t label, float own,
                                         const LogSum<T>& all, float near, float differences) {
  const float log = logf(all.sum);
  const float loss = targets.weight_of(label) * (all.peak - own + log);
  if (targets.smoothing == 0.0f) return loss;
  const float smooth = targets.all_weights() * (all.peak - near + log) - differences;
  return (1.0f - targets.smoothing) * loss + targets.smoothing / targets.classes * smooth;
}

template <typename Make, bool smoothing, typename T>
__global__ void __launch_bounds__(kRowThreads) cross_entropy_kernel(const CrossEntropyParams<T> p) {
  auto team = Make::make();
  wait_for_previous();
  let_next_start();
  const Targets<float>& targets = p.targets;
  const int r = team.unit * Make::Team::kRows + team.row;
  const int64_t label = r < targets.rows ? targets.labels[r] : targets.ignored;
  const bool counts = is_class(targets, label);
  const T* row = p.x + int64_t{r} * targets.classes;
  const float own = counts ? to_float(row[label]) : 0.0f;
  // Differences to a number of the row are what smoothing adds up, so that rows far from 0 keep
  // their precision.
  const float near = isfinite(own) ? own : 0.0f;
  float differences[1] = {};
  LogSum<T> part;
  if (counts) {
    part = own_log_sum(row, targets.classes, team.rank, team.size, [&](int c, const auto& x) {
      if constexpr (smoothing) differences[0] += weighted_sum(targets, c, x, near);
    });
  }
  const LogSum<T> all = joined(team, part);
  if constexpr (smoothing) team.template reduce<Sum>(differences);
  if (team.rank != 0 || r >= targets.rows) return;
  if (counts) {
    p.losses[r] = loss_of(targets, label, own, all, near, differences[0]);
    p.softmax[2 * int64_t{r}] = all.peak;
    p.softmax[2 * int64_t{r} + 1] = all.sum;
  } else if (label == targets.ignored) {
    p.losses[r] = 0.0f;
  } else {
    p.losses[r] = NAN;
    report(p.fault, targets, label);
  }
}

template <typename Make, typename T>
void start(Stream& stream, const CrossEntropyParams<T>& p) {
  const auto kernel = p.targets.smoothing != 0.0f ? cross_entropy_kernel<Make, true, T>
                                                  : cross_entropy_kernel<Make, false, T>;
  const int units = (p.targets.rows + Make::kRows - 1) / Make::kRows;
  launch_clusters(stream, kernel, dim3(Make::kCluster), units * Make::kCluster, kRowThreads, 0, p);
}

constexpr int kTotalThreads = 1024;

__global__ void __launch_bounds__(kTotalThreads) total_loss_kernel(const TotalLossParams<float> p) {
  auto team = Blocks<1>::make();
  wait_for_previous();
  let_next_start();
  float sums[2] = {};  // of losses, and of weights
#pragma unroll 4
  for (int r = threadIdx.x; r < p.targets.rows; r += kTotalThreads) {
    const int64_t label = p.targets.labels[r];
    sums[0] += p.losses[r];
    if (is_class(p.targets, label)) sums[1] += p.targets.weight_of(label);
  }
  team.reduce<Sum>(sums);
  if (threadIdx.x != 0) return;
  *p.total = p.mean ? sums[0] / sums[1] : sums[0];
  *p.count = sums[1];
}

}  // namespace
}  // namespace cuda

template <typename T>
void cross_entropy(cuda::Stream& stream, const CrossEntropyParams<T>& p) {
  if (p.targets.rows == 0) return;
  // Few long rows: a cluster of blocks for each.
  constexpr int kCluster = 8;
  const bool few = p.targets.rows <= 2 * stream.device().multiprocessors;
  const bool wide = p.targets.classes / cuda::Pieces<T>::kPack >= kCluster * cuda::kRowThreads;
  if (few && wide && stream.device().hopper()) {
    return cuda::start<cuda::Blocks<kCluster>>(stream, p);
  }
  cuda::with_row_teams<T>(p.targets.classes,
                          [&]<typename Make>(Make) { cuda::start<Make>(stream, p); });
}

template <typename R>
void total_loss(cuda::Stream& stream, const TotalLossParams<R>& p) {
  launch(stream, cuda::total_loss_kernel, 1, cuda::kTotalThreads, 0, p);
}

template void total_loss(cuda::Stream&, const TotalLossParams<float>&);
#define INSTANTIATE(T) template void cross_entropy(cuda::Stream&, const CrossEntropyParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
