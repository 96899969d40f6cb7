// What the rules leave of a row, as apply_rules does on the CPU: bans, forced tokens,
// renormalisation; see logits.h. Only the groups concerned are read again.
#pragma once

#include "kernels/cuda/scan.cuh"
#include "kernels/select.h"

namespace decoding::cuda::selection {

// Calls f(group) for the group of each id, by the eight lanes that share it. Whole warps call f,
// with group -1 where there is none.
template <typename F>
__device__ __forceinline__ void for_groups_of(const int32_t* ids, int count, F&& f) {
#pragma unroll 1
  for (int base = 0; base < count; base += kGroupsAtOnce) {
    const int i = base + threadIdx.x / kLanes;
    f(i < count ? ids[i] / kGroup : -1);
  }
}

template <typename T>
__device__ __noinline__ void write(Row<T> row, const int32_t* ids, int count, float value) {
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) row.logits[ids[i]] = from_float<T>(value);
  __syncthreads();
  for_groups_of(ids, count, [&](int group) {
    Columns<T> x;
    x.load(row.logits, group < 0 ? 0 : row.vocab, max(group, 0));
    float max, sum;
    summarize(x, max, sum);
    if (group >= 0 && threadIdx.x % kLanes == 0) {
      row.group_max[group] = max;
      row.group_sum[group] = sum;
    }
  });
  __syncthreads();
}

// Groups without forced tokens keep their logits: with a maximum of -inf nobody reads them again.
template <typename T>
__device__ __noinline__ void force(Row<T> row, const int32_t* ids, int count) {
  for (int g = threadIdx.x; g < row.groups; g += kThreads) {
    row.group_max[g] = -INFINITY;
    row.group_sum[g] = 0.0f;
  }
  for_groups_of(ids, count, [&](int group) {
    for (int i = 0; i < kColumns && group >= 0; ++i) {
      const int column = Columns<T>::column(group, i);
      if (column < row.vocab) row.logits[column] = from_float<T>(-INFINITY);
    }
  });
  __syncthreads();
  write(row, ids, count, 0.0f);
}

// lse: of the raw row. Returns what it is after the rules.
template <typename T>
__device__ float apply_rules(const SelectParams<T>& p, const SelectRules& rules, int step,
                             Row<T> row, float lse) {
  if (rules.banned_count > 0) write(row, p.banned, rules.banned_count, -INFINITY);
  if (step <= rules.min_new && rules.eos_count > 0) {
    write(row, p.eos, rules.eos_count, -INFINITY);
  }
  const bool first = step == 1 && rules.forced_first_count > 0;
  const bool last = step == rules.max_new && rules.forced_last_count > 0;
  if (first) force(row, p.forced_first, rules.forced_first_count);
  if (last) force(row, p.forced_last, rules.forced_last_count);
  if ((first || last) && isfinite(lse)) lse = 0.0f;
  if (rules.renormalize) {
    const float left = log_sum_exp(row.group_max, row.group_sum, row.groups);
    if (isfinite(lse) && isfinite(left)) lse = left;
  }
  return lse;
}

}  // namespace decoding::cuda::selection
