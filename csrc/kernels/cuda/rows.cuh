// Bookkeeping of live rows by one block. The contract is in rows.h, the order that of the CPU's
// rows.cc.
#pragma once

#include "kernels/cuda/beam.cuh"

namespace decoding::cuda::selection {

// The rows of live sentence i take their tokens. fallback: taken where none was left to choose; -1:
// that is a fault.
template <typename T>
__device__ void accept_tokens(const SelectParams<T>& p, int step, int i, int fallback) {
  __shared__ int fault;  // of the last row that has one: 2 * (beam + 1), and 1 where it is broken
  const SelectRules& rules = *p.rules;
  const int sentence = p.live[i];
  if (threadIdx.x == 0) fault = 0;
  __syncthreads();
  bool open = false;
  for (int beam = threadIdx.x; beam < p.beams; beam += kThreads) {
    const int row = i * p.beams + beam, slot = sentence * p.beams + beam;
    int32_t* token = p.tokens + int64_t{step - 1} * p.total_slots + slot;
    if (p.length[slot] > 0) {
      *token = rules.pad;
      continue;
    }
    const float lse = __ldcg(p.lse + row);
    const int chosen = __ldcg(&p.best[int64_t{row} * p.m].id);
    const bool broken = isnan(lse) || lse == INFINITY;
    int taken = chosen >= 0 ? chosen : fallback;
    const bool none = broken || taken < 0;
    if (none) {
      atomicMax(&fault, 2 * (beam + 1) + broken);
      taken = rules.pad;
    }
    *token = taken;
    if (none || ends(p.eos, rules, step, taken)) {
      p.length[slot] = step;
    } else {
      open = true;
    }
  }
  open = __syncthreads_or(open);
  if (threadIdx.x != 0) return;
  if (fault != 0) p.fault[sentence] = fault % 2 == 1 ? step : -step;
  if (!open) p.done[sentence] = 1;
}

// Ends the step: drops the sentences that are done, lists what the rows of the others read next,
// and publishes how things stand.
template <typename T>
__device__ void gather_live(const SelectParams<T>& p, StepState now) {
  const int32_t* last = p.tokens + int64_t{now.number - 1} * p.total_slots;
  int kept = 0;
  for (int base = 0; base < now.live_count; base += kThreads) {
    const int i = base + threadIdx.x;
    const bool there = i < now.live_count;
    const int sentence = there ? p.live[i] : 0;
    const bool stays = there && __ldcg(p.done + sentence) == 0;
    const int first = p.first[sentence], item = p.items[sentence];
    int total;
    const int place = kept + block_rank(stays, total);
    for (int beam = 0; beam < p.beams && stays; ++beam) {
      const int row = place * p.beams + beam;
      p.ids[row] = __ldcg(last + sentence * p.beams + beam);
      p.at[row] = first + now.number;
      p.random_row[row] = item * p.beams + beam;
    }
    if (stays) p.live[place] = sentence;  // this and what lies before it has been read
    kept += total;
  }
  if (threadIdx.x != 0) return;
  const StepState next = {now.number + 1, now.position + 1, kept};
  *p.now = next;
  __threadfence_system();  // whoever sees it in the host's memory sees the rest too
  *p.seen = next;
}

}  // namespace decoding::cuda::selection
