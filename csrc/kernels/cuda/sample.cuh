// One random token of a row. What is drawn is in sample.h; the noise is that of the CPU's
// sample.cc.
//
// Where the warpers keep few tokens, each gets its noise, in double precision. Where they keep
// many, a pass over the random words finds the finalists: noise falls as words grow, so only words
// below a limit can beat the best score so far; those get a score in float, and what comes within
// kMargin of the best becomes a finalist, which covers the rounding many times over. Double
// precision decides.
#pragma once

#include "core/philox.h"
#include "kernels/cuda/topk.cuh"

namespace decoding::cuda::selection {

constexpr float kMargin = 0x1p-12f;

// What the scores of a row's tokens depend on.
struct Dice {
  uint64_t seed;
  uint32_t step, row;
  float temperature;

  // Of tokens 4 * i to 4 * i + 3.
  __device__ void words(uint32_t i, uint32_t (&four)[4]) const {
    four[0] = i;
    four[1] = step;
    four[2] = row;
    four[3] = 0;
    philox_rounds(seed, four);
  }
  __device__ double score(Key token) const {
    uint32_t four[4];
    words(id_of(token) / 4, four);
    const int lane = id_of(token) % 4;
    const uint32_t word = lane == 0 ? four[0] : lane == 1 ? four[1] : lane == 2 ? four[2] : four[3];
    return value_of(token) / temperature - log(-log1p(-(word + 0.5) * 0x1p-32));
  }
};

// To a few units in the last place for every word: near 1, u is taken from its distance to 1.
static __device__ __noinline__ float noise(uint32_t word) {
  const float u = (word + 0.5f) * 0x1p-32f, rest = (~word + 0.5f) * 0x1p-32f;
  return -logf(u < 0.5f ? -log1pf(-u) : -logf(rest));
}

// No word above it has noise of `needed` or more: the CPU's bound, see there.
__device__ __forceinline__ uint32_t largest_word(float needed) {
  const float word = __expf(-needed) * 0x1.001p32f + 1.0f;
  return word < 0x1p32f ? static_cast<uint32_t>(word) : 0xFFFFFFFFu;
}

// The winner among queued tokens, with its logit.
__device__ __forceinline__ Candidate decide(Queue queue, int count, const Dice& dice) {
  __shared__ double scores[kWarps];
  __shared__ Key tokens[kWarps];
  double best = -INFINITY;
  Key chosen = 0;
  const auto offer = [&](double score, Key token) {
    if (score < best || (score == best && id_of(token) >= id_of(chosen)) || token == 0) return;
    best = score;
    chosen = token;
  };
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const Key token = queue.keys[i];
    const double score = dice.score(token);
    if (score > -INFINITY) offer(score, token);
  }
#pragma unroll 1
  for (int other = 16; other > 0; other /= 2) {
    const double score = __shfl_xor_sync(kAllLanes, best, other);
    offer(score, __shfl_xor_sync(kAllLanes, chosen, other));
  }
  __syncthreads();
  if (lane_id() == 0) {
    scores[warp_id()] = best;
    tokens[warp_id()] = chosen;
  }
  __syncthreads();
#pragma unroll 1
  for (int w = 0; w < kWarps; ++w) offer(scores[w], tokens[w]);
  return chosen == 0 ? Candidate{-INFINITY, -1} : Candidate{value_of(chosen), id_of(chosen)};
}

// Queues the finalists among the tokens whose keys reach `last`; returns how many there are.
template <typename T>
__device__ int find_finalists(Row<T> row, Key last, float peak, const Dice& dice, Queue queue) {
  __shared__ int count;
  __shared__ uint32_t best;  // order of the highest score so far
  __syncthreads();
  if (threadIdx.x == 0) {
    count = 0;
    best = order_of(-INFINITY);
  }
  __syncthreads();
  const float low = value_of(last), scaled_peak = peak / dice.temperature;
#pragma unroll 1
  for (int group = row.begin + warp_id(); group < row.end; group += kWarps) {
    if (!(row.group_max[group] >= low)) continue;
    const uint32_t so_far = lane_id() == 0 ? atomicMax(&best, 0) : 0;
    float bar = value_at(__shfl_sync(kAllLanes, so_far, 0)) - kMargin;
    const uint32_t limit =
        largest_word(bar - (row.group_max[group] / dice.temperature - scaled_peak));
    uint32_t words[4];
    const int first = group * kGroup + 4 * lane_id();
    dice.words(first / 4, words);
    float scores[4], highest = -INFINITY;
    Key tokens[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      scores[j] = -INFINITY;
      if (words[j] > limit || first + j >= row.vocab) continue;
      const float value = to_float(row.logits[first + j]);
      tokens[j] = key_of(value, first + j);
      if (!(value >= low) || tokens[j] < last) continue;
      scores[j] = (value / dice.temperature - scaled_peak) + noise(words[j]);
      highest = fmaxf(highest, scores[j]);
    }
    if (!__any_sync(kAllLanes, highest >= bar && highest > -INFINITY)) continue;
    highest = warp_max(highest);
    if (lane_id() == 0) atomicMax(&best, order_of(highest));
    bar = fmaxf(bar, highest - kMargin);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (!(scores[j] >= bar) || scores[j] == -INFINITY) continue;
      const int at = atomicAdd(&count, 1);
      if (at < queue.capacity) queue.keys[at] = tokens[j];
    }
  }
  __syncthreads();
  return min(count, queue.capacity);
}

// What the warpers keep: tokens whose keys reach `last`. Where they are few they lie at the queue's
// head, else `queued` is -1.
struct Kept {
  Key last;
  int queued;
};

// Top-k among few, then top-p among those.
__device__ __forceinline__ Kept keep_queued(Queue queue, int count, int k, const Mass& mass) {
  sort(queue, count);
  Kept kept = {first_key(-FLT_MAX), count};
  if (count > k) {  // with any id: ties at the k-th stay
    kept.last = queue.keys[k - 1] >> 32 << 32;
    kept.queued = 0;
#pragma unroll 1
    for (int base = 0; base < count; base += kThreads) {
      const int i = base + threadIdx.x;
      kept.queued += __syncthreads_count(i < count && queue.keys[i] >= kept.last);
    }
  }
  if (mass.p == 1.0f || kept.queued == 0) return kept;
  double before = 0.0;
  const auto weight = [&](int i) {
    return i < kept.queued ? mass.of(value_of(queue.keys[i])) : 0.0;
  };
  const int end = crossing((kept.queued + kThreads - 1) / kThreads, weight,
                           [&](double total) { return mass.wanted(total); }, before);
  return {queue.keys[end], end + 1};
}

template <typename T>
__device__ Kept keep(Row<T> row, int k, const Mass& mass, Queue queue) {
  const bool limited = 0 < k && k < row.vocab;
  float floor = -FLT_MAX;
  if (limited) {
    if (k <= queue.capacity / 4) {
      floor = bound_of_best(row.group_max, row.end, k, queue);
      const int count = collect(row, first_key(floor), kBestKey, queue);
      if (count <= queue.capacity) return keep_queued(queue, count, k, mass);
    }
    floor = value_of(end_of_prefix(row, Counted{k, mass.peak}, floor, queue));
  }
  if (mass.p == 1.0f) return {first_key(floor), -1};
  return {end_of_prefix(row, mass, floor, queue), -1};
}

// random_row: the row word of the counter.
template <typename T>
__device__ Candidate draw(Row<T> row, const SelectRules& rules, int step, int random_row,
                          Queue queue) {
  const float peak = largest(row.group_max, row.end);
  if (peak == -INFINITY) return {-INFINITY, -1};
  const Dice dice = {rules.seed, static_cast<uint32_t>(step), static_cast<uint32_t>(random_row),
                     rules.temperature};
  const Mass mass = {rules.top_p, peak, rules.temperature, 1.0f / rules.temperature};
  const Kept kept = keep(row, rules.top_k, mass, queue);
  const int count =
      kept.queued >= 0 ? kept.queued : find_finalists(row, kept.last, peak, dice, queue);
  return decide(queue, count, dice);
}

}  // namespace decoding::cuda::selection
