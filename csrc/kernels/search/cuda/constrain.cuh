// What bans and forced tokens leave of a row (ConstrainLogitsParams in logits.h). Each block sees
// to its share of the row; only the groups concerned are read again.
#pragma once

#include "kernels/search/cuda/call.cuh"
#include "kernels/search/cuda/scan.cuh"
#include "kernels/search/select.h"

namespace decoding::cuda::selection {

// Calls f(group) for the group of each id, by the eight lanes that share it. Whole warps call f,
// with group -1 where there is none.
template <typename T, typename F>
__device__ __forceinline__ void for_groups_of(const Row<T>& row, const int32_t* ids, int count,
                                              F&& f) {
#pragma unroll 1
  for (int base = 0; base < count; base += kGroupsAtOnce) {
    const int i = base + threadIdx.x / kLanes, group = i < count ? ids[i] / kGroup : -1;
    f(row.has(group) ? group : -1);
  }
}

template <typename T>
__device__ __noinline__ void write(Row<T> row, const int32_t* ids, int count, float value) {
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) {
    if (row.has(ids[i] / kGroup)) row.logits[ids[i]] = from_float<T>(value);
  }
  __syncthreads();
  for_groups_of(row, ids, count, [&](int group) {
    Columns<T> x;
    x.load(row.logits, group < 0 ? 0 : row.vocab, max(group, 0));
    x.cut(row.vocab, max(group, 0));
    const float max = warp_max<kLanes>(x.largest());
    if (group >= 0 && threadIdx.x % kLanes == 0) row.group_max[group] = max;
  });
  __syncthreads();
}

// Groups without forced tokens keep their logits: with a maximum of -inf nobody reads them again.
template <typename T>
__device__ __noinline__ void force(Row<T> row, const int32_t* ids, int count) {
  for (int g = row.begin + threadIdx.x; g < row.end; g += kThreads) row.group_max[g] = -INFINITY;
  for_groups_of(row, ids, count, [&](int group) {
    for (int i = 0; i < kColumns && group >= 0; ++i) {
      const int column = Columns<T>::column(group, i);
      if (column < row.vocab) row.logits[column] = from_float<T>(-INFINITY);
    }
  });
  __syncthreads();
  write(row, ids, count, 0.0f);
}

// What they leave is added up again, group by group as their maxima say whether anything is.
template <typename T>
__device__ __noinline__ void sum_again(Row<T> row, ClusterExchange exchange, int first_word) {
#pragma unroll 1
  for (int base = row.begin; base < row.end; base += kGroupsAtOnce) {
    const int group = base + threadIdx.x / kLanes;
    if (base + kQuad * warp_id() >= row.end) break;  // the whole warp
    Columns<T> x;
    const bool left = row.group_max[group] > -INFINITY;
    x.load(row.logits, left ? row.vocab : 0, group);
    x.cut(left ? row.vocab : 0, group);
    const Word sum = sum_of_quad(x, row.group_max[group]);
    if (lane_id() == 0) exchange.put(first_word + group / kQuad, sum);
  }
}

template <typename T>
__device__ void constrain(const SelectParams<T>& p, const Call& call, int step, Row<T> row) {
  const SentenceConfig& config = call.sentence;
  const int32_t* words = p.config.words;
  if (config.banned.count > 0) {
    write(row, words + config.banned.begin, config.banned.count, -INFINITY);
  }
  if (step <= config.min_new && config.eos.count > 0) {
    write(row, words + config.eos.begin, config.eos.count, -INFINITY);
  }
  if (config.forces_first(step)) force(row, &config.forced_first, 1);
  if (config.forces_last(step)) {
    force(row, words + config.forced_last.begin, config.forced_last.count);
  }
}

// Processed scores are log-probabilities, where rows compete, and bring the lse of the logits along
// to tell whether those were finite. found: a row's lse in memory.
__device__ __forceinline__ float lse_to_take_off(const Call& call, float found) {
  return call.search.processed && isfinite(found) ? 0.0f : found;
}

// The lse that row `index` is judged by; a warp calls this. sums: of the raw row's quads, then of
// what the rules left.
template <typename T>
__device__ __forceinline__ float finalize_lse(const SelectParams<T>& p, const Call& call, int step,
                                              int index, const Word* sums, int quads) {
  if (call.brings_lse()) return lse_to_take_off(call, p.lse[index]);
  float lse = log_sum_exp(sums, quads);
  if (!call.search.processed && call.sentence.forces(step) && isfinite(lse)) lse = 0.0f;
  if (call.renormalizes()) {
    const float left = log_sum_exp(sums + quads, quads);
    if (isfinite(lse) && isfinite(left)) lse = left;
  }
  if (lane_id() == 0) p.lse[index] = lse;
  return lse;
}

}  // namespace decoding::cuda::selection
