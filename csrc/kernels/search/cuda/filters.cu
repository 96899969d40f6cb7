// What sampling leaves of each row: filters.h, by one block a row. Like the CPU's, every filter
// comes down to the last token that it keeps.
#include "kernels/cuda/launch.cuh"
#include "kernels/search/cuda/scores.cuh"
#include "kernels/search/filters.h"

namespace decoding {
namespace cuda {
namespace {

using namespace selection;

constexpr int kTopHTokens = 100;  // that top_h looks at

// Takes out what comes behind `last`; lists the others where they are few.
template <typename Order>
__device__ __forceinline__ void keep_through(Key last, Scores& scores, Order order) {
  __shared__ int count;
  __syncthreads();
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  if (scores.listed >= 0) {
#pragma unroll 1
    for (int i = threadIdx.x; i < scores.listed; i += kThreads) {
      const Key token = scores.list[i];
      if (token == 0 || key_of(order(value_of(token)), id_of(token)) >= last) continue;
      scores.row[id_of(token)] = -INFINITY;
      scores.list[i] = 0;
    }
    __syncthreads();
    return;
  }
  const volatile int* so_far = &count;
  scores.each([&](float score, int id) {
    if (key_of(order(score), id) < last) {
      scores.row[id] = -INFINITY;
    } else if (*so_far <= kListed) {
      const int at = atomicAdd(&count, 1);
      if (at < kListed) scores.list[at] = key_of(score, id);
    }
  });
  __syncthreads();
  if (count <= kListed) scores.listed = count;
}

// The m-th best, among which none comes behind another filter's last; where m is 1 that is no
// restriction but for epsilon and eta.
__device__ __forceinline__ Key kth_best(const Scores& scores, int m, Queue queue) {
  if (m == 1) return last_key(order_of(scores.peak));
  return end_of_prefix(scores, ByScore{scores.peak}, Count{m}, queue);
}

__device__ __forceinline__ Key with_ties(Key last) { return last >> 32 << 32; }

// The softmax of what is left.
struct Softmax {
  double sum;      // of w = exp(x - peak)
  double entropy;  // H
  double mean;     // of x

  // Sums of whole numbers, exact in any order.
  __device__ __noinline__ static Softmax of(const Scores& scores) {
    double weights = 0.0, moments = 0.0, sum, moment;
    scores.each([&](float score, int) {
      const float below = scores.peak - score, weight = expf(-below);
      if (weight == 0.0f) return;
      weights += rint(static_cast<double>(weight) * Share::kUnits);
      moments += rint(static_cast<double>(weight) * below * Share::kUnits);
    });
    block_prefix(weights, sum);
    block_prefix(moments, moment);
    const double shortfall = moment / sum;
    sum /= Share::kUnits;
    return {sum, log(sum) + shortfall, scores.peak - shortfall};
  }
};

__device__ __noinline__ void apply_temperature(float temperature, Scores& scores) {
  if (temperature != 1.0f) {
    scores.each([&](float score, int id) { scores.row[id] = score / temperature; });
    __syncthreads();
  }
  scores.peak = find_peak(scores);
}

__device__ __noinline__ void apply_top_h(float h, Scores& scores, Queue queue) {
  const ByScore order{scores.peak};
  const Key hundredth = end_of_prefix(scores, order, Count{kTopHTokens}, queue);
  const int count = queue_keys(scores, order, queue, [=](Key key) { return key >= hundredth; });
  sort(queue, count);
  const int i = threadIdx.x;
  const double weight = i < count ? exp(double{value_of(queue.keys[i])} - scores.peak) : 0.0;
  double sum, entropy;
  block_prefix(weight, sum);
  const double p = weight / sum;
  const double term = p > 0.0 ? rint(-p * log(p) * Share::kUnits) : 0.0;
  const double through = block_prefix(term, entropy) + term;
  const int kept = __syncthreads_count(i < count && through <= h * entropy);
  keep_through(queue.keys[max(kept, 1) - 1], scores, order);
}

__device__ __noinline__ void apply_top_k(int k, Scores& scores, Queue queue) {
  if (k >= scores.vocab) return;
  const ByScore order{scores.peak};
  keep_through(with_ties(end_of_prefix(scores, order, Count{k}, queue)), scores, order);
}

__device__ __noinline__ void apply_top_p(float p, int keep, Scores& scores, Queue queue) {
  const ByScore order{scores.peak};
  const Key least = kth_best(scores, keep, queue);
  const Key end = end_of_prefix(scores, order, Share{p, scores.peak}, queue);
  keep_through(min(end, least), scores, order);
}

// Keeps what has a probability of `cutoff`, and what does not come behind `least`.
__device__ __noinline__ void apply_cutoff(float cutoff, float sum, Key least, Scores& scores) {
  uint32_t lowest = ~0u;
  scores.each([&](float score, int) {
    if (expf(score - scores.peak) / sum >= cutoff) lowest = min(lowest, order_of(score));
  });
  const Key end = Key{~block_max(~lowest)} << 32;
  keep_through(min(end, least), scores, ByScore{scores.peak});
}

__device__ __noinline__ void apply_typical(float p, int keep, Scores& scores, Queue queue) {
  const ByTypicality order{static_cast<float>(Softmax::of(scores).mean)};
  const Key first = keep == 1 ? kFirstKey : end_of_prefix(scores, order, Count{keep}, queue);
  const Key end = end_of_prefix(scores, order, Share{p, scores.peak}, queue);
  keep_through(min(with_ties(end), first), scores, order);
  scores.peak = find_peak(scores);
}

__device__ void filter_row(const FilterConfig& filters, Scores& scores, Queue queue) {
  const int keep = filters.min_tokens;
  apply_temperature(filters.temperature, scores);
  if (scores.peak == -INFINITY) return;
  if (filters.top_h > 0.0f) apply_top_h(filters.top_h, scores, queue);
  if (filters.top_k > 0) apply_top_k(max(filters.top_k, keep), scores, queue);
  if (filters.top_p < 1.0f) apply_top_p(filters.top_p, keep, scores, queue);
  if (filters.min_p > 0.0f) {
    const auto sum = static_cast<float>(Softmax::of(scores).sum);
    apply_cutoff(filters.min_p * (1.0f / sum), sum, kth_best(scores, keep, queue), scores);
  }
  if (filters.typical_p < 1.0f) apply_typical(filters.typical_p, keep, scores, queue);
  if (filters.epsilon > 0.0f) {
    const auto sum = static_cast<float>(Softmax::of(scores).sum);
    apply_cutoff(filters.epsilon, sum, with_ties(kth_best(scores, keep, queue)), scores);
  }
  if (filters.eta > 0.0f) {
    const Softmax softmax = Softmax::of(scores);
    const double eta = sqrt(double{filters.eta}) * exp(-softmax.entropy);
    apply_cutoff(fminf(filters.eta, static_cast<float>(eta)), static_cast<float>(softmax.sum),
                 with_ties(kth_best(scores, keep, queue)), scores);
  }
}

__global__ void __launch_bounds__(kThreads) filter_kernel(const FilterParams p) {
  __shared__ Key keys[kListed], list[kListed];
  wait_for_previous();
  let_next_start();
  const int row = blockIdx.x;
  if (row >= p.state->active_count * p.beams) return;
  Scores scores = {.row = p.scores + static_cast<int64_t>(row) * p.stride,
                   .vocab = p.vocab,
                   .list = list,
                   .listed = -1,
                   .peak = -INFINITY};
  filter_row(p.config.sentences[p.active[row / p.beams].id].filters, scores,
             {.keys = keys, .capacity = kListed});
}

}  // namespace
}  // namespace cuda

void filter_scores(cuda::Stream& stream, const FilterParams& p) {
  cuda::launch(stream, cuda::filter_kernel, p.sentences * p.beams, cuda::selection::kThreads, 0, p);
}

}  // namespace decoding
