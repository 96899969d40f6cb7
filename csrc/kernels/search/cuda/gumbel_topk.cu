// Draws without replacement: gumbel_topk.h, by one block a row. Every finite score gets its noise,
// in double precision as on the CPU; the m best keys are the samples.
#include "core/check.h"
#include "core/philox.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/search/cuda/scores.cuh"
#include "kernels/search/gumbel_topk.h"

namespace decoding {
namespace cuda {
namespace {

using namespace selection;

__device__ __forceinline__ double noise(uint32_t word) {
  return -log(-log1p(-(word + 0.5) * 0x1p-32));
}

// Of every token score + sum + noise; -inf where the score is.
__device__ __noinline__ void perturb(const float* scores, int vocab, float sum, uint64_t seed,
                                     uint32_t step, uint32_t row, float* perturbed) {
#pragma unroll 1
  for (int first = 4 * threadIdx.x; first < vocab; first += 4 * kThreads) {
    float totals[4];
    bool any = false;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      totals[j] = first + j < vocab ? scores[first + j] + sum : -INFINITY;
      any |= fabsf(totals[j]) <= FLT_MAX;
    }
    uint32_t words[4] = {static_cast<uint32_t>(first) / 4, step, row, 0};
    if (any) philox_rounds(seed, words);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (first + j >= vocab) break;
      const bool finite = fabsf(totals[j]) <= FLT_MAX;
      perturbed[first + j] = finite ? static_cast<float>(totals[j] + noise(words[j])) : -INFINITY;
    }
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) sample_kernel(const SampleCandidatesParams p) {
  __shared__ Key keys[kListed];
  wait_for_previous();
  let_next_start();
  const int64_t row = blockIdx.x;
  if (row >= p.state->active_count * p.beams) return;
  const ActiveSentence sentence = p.active[row / p.beams];
  const int beam = row % p.beams;
  const SentenceConfig& config = p.config.sentences[sentence.id];
  const float* scores = p.scores + row * p.stride;
  float* perturbed = p.perturbed + row * p.vocab;
  perturb(scores, p.vocab, p.sums[sentence.id * p.beams + beam], config.seed, sentence.number,
          config.random_first + beam, perturbed);

  Scores sampled = {
      .row = perturbed, .vocab = p.vocab, .list = nullptr, .listed = -1, .peak = 0.0f};
  const Queue queue = {.keys = keys, .capacity = kListed};
  const ByScore order{find_peak(sampled)};
  const Key last = end_of_prefix(sampled, order, Count{p.m}, queue);
  const int count = queue_keys(sampled, order, queue, [=](Key key) { return key >= last; });
  sort(queue, count);
  for (int i = threadIdx.x; i < p.m; i += kThreads) {
    const int id = i < count ? id_of(keys[i]) : -1;
    p.best[row * p.m + i] = {id < 0 ? -INFINITY : scores[id], id};
    p.keys[row * p.m + i] = id < 0 ? -INFINITY : perturbed[id];
  }
}

}  // namespace
}  // namespace cuda

void sample_candidates(cuda::Stream& stream, const SampleCandidatesParams& p) {
  CHECK(p.m <= cuda::selection::kListed, p.m, " draws are more than a block sorts, ",
        cuda::selection::kListed);
  cuda::launch(stream, cuda::sample_kernel, p.sentences * p.beams, cuda::selection::kThreads, 0, p);
}

}  // namespace decoding
