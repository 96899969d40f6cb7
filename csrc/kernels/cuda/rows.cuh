// Bookkeeping of live rows by one block. The contract is in rows.h, the order that of the CPU's
// rows.cc.
#pragma once

#include "kernels/cuda/beam.cuh"

namespace decoding::cuda::selection {

// The rows of live sentence i take their tokens. fallback: taken where none was left to choose; -1:
// that is a fault.
template <typename T>
__device__ void accept_tokens(const SelectParams<T>& p, const Call& call, int step, int i,
                              int sentence, int fallback) {
  __shared__ int fault;  // of the last row that has one: 2 * (beam + 1), and 1 where it is broken
  if (threadIdx.x == 0) fault = 0;
  __syncthreads();
  bool open = false;
#pragma unroll 1
  for (int beam = threadIdx.x; beam < p.beams; beam += kThreads) {
    const int row = i * p.beams + beam, slot = sentence * p.beams + beam;
    int32_t* token = p.tokens + int64_t{step - 1} * p.total_slots + slot;
    const int length = p.length[slot], chosen = __ldcg(&p.best[int64_t{row} * p.m].id);
    const float lse = __ldcg(p.lse + row);
    if (length > 0) {
      *token = call.rules.pad;
      continue;
    }
    const bool broken = isnan(lse) || lse == INFINITY;
    int taken = chosen >= 0 ? chosen : fallback;
    const bool none = broken || taken < 0;
    if (none) {
      atomicMax(&fault, 2 * (beam + 1) + broken);
      taken = call.rules.pad;
    }
    *token = taken;
    if (none || call.ends(p.eos, step, taken)) {
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

// A live sentence, for the thread that is to drop or keep it.
struct Waiting {
  int sentence, first, item;

  template <typename T>
  __device__ Waiting(const SelectParams<T>& p, int i, int live_count)
      : sentence(i < live_count ? p.live[i] : 0),
        first(p.first[sentence]),
        item(p.items[sentence]) {}
};

// What the rows of a sentence that goes on read next. place: of the sentence among those.
template <typename T>
__device__ void list_rows(const SelectParams<T>& p, const Waiting& waiting, int number, int place) {
  const int32_t* last = p.tokens + int64_t{number - 1} * p.total_slots + waiting.sentence * p.beams;
#pragma unroll 1
  for (int begin = 0; begin < p.beams; begin += kAhead) {
    int32_t tokens[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      tokens[j] = begin + j < p.beams ? __ldcg(last + begin + j) : 0;
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (begin + j >= p.beams) break;
      const int row = place * p.beams + begin + j;
      p.ids[row] = tokens[j];
      p.at[row] = waiting.first + number;
      p.random_row[row] = waiting.item * p.beams + begin + j;
    }
  }
}

// Ends the step: drops the sentences that are done, lists what the rows of the others read next.
// waiting: the first kThreads sentences.
template <typename T>
__device__ void gather_live(const SelectParams<T>& p, StepState now, Waiting waiting) {
  int kept = 0;
#pragma unroll 1
  for (int base = 0; base < now.live_count; base += kThreads) {
    const int i = base + threadIdx.x;
    if (base > 0) waiting = Waiting(p, i, now.live_count);
    const bool stays = i < now.live_count && __ldcg(p.done + waiting.sentence) == 0;
    int total;
    const int place = kept + block_rank(stays, total);
    if (stays) {
      list_rows(p, waiting, now.number, place);
      p.live[place] = waiting.sentence;  // this and what lies before it has been read
    }
    kept += total;
  }
  if (threadIdx.x != 0) return;
  const StepState next = {now.number + 1, now.position + 1, kept};
  *p.now = next;
  if (kept == 0) {
    __threadfence_system();  // whoever sees it in the host's memory sees the rest too
    *p.seen = next;
  }
}

}  // namespace decoding::cuda::selection
