// One random token of a row. What is sampled is in sampling.h; the noise is that of the CPU's
// sampling.cc.
//
// The blocks of a row draw together, each among its own tokens. With top-p they draw as if there
// were none, then ask whether the winner belongs to the nucleus: whether the tokens that are better
// weigh less than the share p. If not, the nucleus lies among those, and they draw again among
// them. Each draw takes away a random part of what lies outside the nucleus, so that it takes
// hardly more than one, and never the end of the nucleus, which would have to be searched for.
//
// A draw looks at little more than the random words. The best of scores (logit / temperature +
// noise) is the log-sum-exp of the logits plus noise, so that a bar just below that log-sum-exp
// leaves few tokens; noise falls as words grow, so only words below a limit can reach the bar.
// Those that do, going by scores in float and a margin that covers their rounding many times over,
// are decided upon in double precision.
//
// Where top-k leaves few tokens, one block sorts them and samples.
#pragma once

#include "core/philox.h"
#include "kernels/search/cuda/topk.cuh"

namespace decoding::cuda::selection {

constexpr float kMargin = 0x1p-12f;

// What the scores of a row's tokens depend on.
struct RowRng {
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

// A token and its score.
struct Sampled {
  double score;
  Key token;  // none(0): nothing was left to choose

  __device__ __forceinline__ void consider(double other, Key candidate) {
    if (is_none(candidate) || !(other > -INFINITY) || other < score) return;
    if (other == score && id_of(candidate) >= id_of(token)) return;
    score = other;
    token = candidate;
  }
};

// The winner among queued tokens, for all threads.
__device__ __forceinline__ Sampled decide(Queue queue, int count, const RowRng& rng) {
  __shared__ double scores[kWarps];
  __shared__ Key tokens[kWarps];
  Sampled best = {-INFINITY, none(0)};
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) {
    best.consider(rng.score(queue.keys[i]), queue.keys[i]);
  }
#pragma unroll 1
  for (int other = 16; other > 0; other /= 2) {
    const double score = __shfl_xor_sync(kAllLanes, best.score, other);
    best.consider(score, __shfl_xor_sync(kAllLanes, best.token, other));
  }
  __syncthreads();
  if (lane_id() == 0) {
    scores[warp_id()] = best.score;
    tokens[warp_id()] = best.token;
  }
  __syncthreads();
#pragma unroll 1
  for (int w = 0; w < kWarps; ++w) best.consider(scores[w], tokens[w]);
  return best;
}

// What tokens weigh, e^((logit - peak) / temperature), added up in integers: in any order, with the
// same result.
struct Scale {
  float peak, inverse_temperature;  // 1 / temperature
  static constexpr float kOne = 0x1p40f;

  __device__ float weight(float value) const {
    return __expf((value - peak) * inverse_temperature);
  }
};

// Of all tokens of a share that are better than `bar`.
template <typename T>
__device__ __noinline__ Word weight_above(Row<T> row, Key bar, Scale scale) {
  using Four = Vector<T, kGroup / 32>;
  const float low = fmaxf(-FLT_MAX, value_of(bar));
  Word sum = 0;
#pragma unroll 2
  for (int group = row.begin + warp_id(); group < row.end; group += kWarps) {
    const int first = group * kGroup + 4 * lane_id();
    if (first >= row.vocab || !(row.group_max[group] >= low)) continue;
    const Four four = Four::load(row.logits + first);
    float part = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool counts =
          first + j < row.vocab && four[j] >= low && key_of(four[j], first + j) > bar;
      part += counts ? scale.weight(four[j]) : 0.0f;
    }
    sum += __float2ull_rn(part * Scale::kOne);
  }
  return block_sum(sum);
}

// Queues the tokens of a share that are better than `bar` and whose score, relative to the scale's
// peak, reaches `needed`; returns how many there are.
template <typename T>
__device__ __noinline__ int find_argmax_candidates(Row<T> row, Key bar, float needed, Scale scale,
                                                   RowRng rng, Queue queue) {
  const float low = fmaxf(-FLT_MAX, value_of(bar));
#pragma unroll 1
  for (int group = row.begin + warp_id(); group < row.end; group += kWarps) {
    const float max = row.group_max[group];
    if (!(max >= low)) continue;
    const uint32_t limit = largest_word(needed - (max - scale.peak) * scale.inverse_temperature);
    uint32_t words[4];
    const int first = group * kGroup + 4 * lane_id();
    rng.words(first / 4, words);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (words[j] > limit || first + j >= row.vocab) continue;
      const float value = to_float(row.logits[first + j]);
      if (!(value >= low) || key_of(value, first + j) <= bar) continue;
      if ((value - scale.peak) * scale.inverse_temperature + noise(words[j]) < needed) continue;
      const int at = atomicAdd(queue.count, 1);
      if (at < queue.capacity) queue.keys[at] = key_of(value, first + j);
    }
  }
  __syncthreads();
  const int count = min(*queue.count, queue.capacity);
  __syncthreads();
  if (threadIdx.x == 0 && count > 0) *queue.count = 0;  // the block meets before the next time
  return count;
}

// The winner of a share among the tokens that are better than `bar`, which weigh `weight`.
template <typename T>
__device__ __forceinline__ Sampled sample_share(const Row<T>& row, Key bar, Word weight,
                                                const Scale& scale, const RowRng& rng,
                                                Queue queue) {
  if (weight == 0) return {-INFINITY, none(0)};
  // One share in 8000 has no score within 2.2 of its log-sum-exp, and must lower the bar.
  float needed = logf(__ull2float_rn(weight) / Scale::kOne) - 2.2f;
  int count = 0;
  for (; count == 0 && needed > -200.0f; needed -= 3.0f) {
    count = find_argmax_candidates(row, bar, needed - kMargin, scale, rng, queue);
  }
  return decide(queue, count, rng);
}

// The blocks of a row draw one token of all that its nucleus holds.
template <typename T>
__device__ Candidate sample_together(const Row<T>& share, float top_p, const RowRng& rng,
                                     ClusterAllGather& gather, int members, Queue queue) {
  Scale scale = {largest(share.group_max + share.begin, share.end - share.begin),
                 1.0f / rng.temperature};
  if (top_p < 1.0f) {
    const auto* all = gather.all_gather(order_of(scale.peak), 0, 0);
    uint32_t peak = 0;
    for (int b = 0; b < members; ++b) peak = max(peak, static_cast<uint32_t>(all[b][0]));
    scale.peak = value_at(peak);
  }
  Key bar = first_key(-FLT_MAX) - 1;
  Word weight = weight_above(share, bar, scale), total = 0;
  for (;;) {
    const Sampled mine = sample_share(share, bar, weight, scale, rng, queue);
    const auto* all = gather.all_gather(__double_as_longlong(mine.score), mine.token, weight);
    Sampled best = {-INFINITY, none(0)};
    Word left = 0;
    for (int b = 0; b < members; ++b) {
      best.consider(__longlong_as_double(all[b][0]), all[b][1]);
      left += all[b][2];
    }
    if (is_none(best.token)) return {-INFINITY, -1};
    const Candidate found = {value_of(best.token), id_of(best.token)};
    if (top_p == 1.0f) return found;
    if (total == 0) total = left;
    weight = weight_above(share, best.token, scale);
    const auto* above = gather.all_gather(weight, 0, 0);
    Word preceding = 0;
    for (int b = 0; b < members; ++b) preceding += above[b][0];
    if (preceding < top_p * static_cast<double>(total)) return found;
    bar = best.token;
  }
}

// Leaves what top-k and then top-p keep at the queue's head; returns how much that is.
__device__ __forceinline__ int keep_queued(Queue queue, int count, int k, const Mass& mass) {
  sort(queue, count);
  int kept = count;
  if (count > k) {
    const Key last = queue.keys[k - 1] >> 32 << 32;  // with any id: ties at the k-th stay
    kept = 0;
#pragma unroll 1
    for (int base = 0; base < count; base += kThreads) {
      const int i = base + threadIdx.x;
      kept += __syncthreads_count(i < count && queue.keys[i] >= last);
    }
  }
  if (mass.p == 1.0f || kept == 0) return kept;
  double before = 0.0;
  const auto weight = [&](int i) { return i < kept ? mass.of(value_of(queue.keys[i])) : 0.0; };
  const int end = crossing((kept + kThreads - 1) / kThreads, weight,
                           [&](double total) { return mass.wanted(total); }, before);
  return end + 1;
}

// The draw of a row whose maxima one block has, among its k best.
template <typename T>
__device__ Candidate sample_among_best(Row<T> row, const FilterConfig& filters, const RowRng& rng,
                                       Queue queue) {
  const float peak = largest(row.group_max, row.end);
  if (peak == -INFINITY) return {-INFINITY, -1};
  const int k = filters.top_k;
  const Mass mass = {filters.top_p, peak, filters.temperature, 1.0f / filters.temperature};
  int queued = queue.capacity + 1;
  float floor = -FLT_MAX;
  if (k <= queue.capacity / 4) {
    floor = bound_of_best(row, k, queue);
    queued = collect(row, first_key(floor), kBestKey, queue);
  }
  Sampled sampled;
  if (queued <= queue.capacity) {
    sampled = decide(queue, keep_queued(queue, queued, k, mass), rng);
  } else {
    Key last = first_key(value_of(end_of_prefix(row, Counted{k, peak}, floor, queue)));
    if (mass.p < 1.0f) last = end_of_prefix(row, mass, value_of(last), queue);
    const Scale scale = {peak, 1.0f / filters.temperature};
    sampled = sample_share(row, last - 1, weight_above(row, last - 1, scale), scale, rng, queue);
  }
  if (is_none(sampled.token)) return {-INFINITY, -1};
  return {value_of(sampled.token), id_of(sampled.token)};
}

}  // namespace decoding::cuda::selection
