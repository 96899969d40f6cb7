// Bookkeeping of active rows by one block. The contract is in update.h, the order that of the CPU's
// update.cc.
#pragma once

#include "kernels/search/cuda/beam.cuh"

namespace decoding::cuda::selection {

// What a row reads next. place: of its sentence among those that go on.
template <typename T>
__device__ __forceinline__ void append_row(const SelectParams<T>& p, int number, int first,
                                           int random_first, int place, int beam, int32_t token) {
  const int row = place * p.beams + beam;
  p.ids[row] = token;
  p.positions[row] = first + number;
  p.random_row[row] = random_first + beam;
}
template <typename T>
__device__ __forceinline__ void append_row(const SelectParams<T>& p, const Call& call, int number,
                                           int place, int beam, int32_t token) {
  append_row(p, number, call.first, call.sentence.random_first, place, beam, token);
}

// The rows of active sentence i take their tokens; returns whether all of them have ended. If not,
// they are listed for the next step, each sentence in its place as long as none ends. at_hand: the
// queue and lses hold what was found for the rows, else memory does. fallback: taken where none was
// left to choose; -1: that is a fault. first_length: that of beam threadIdx.x, which was asked for
// early.
template <typename T>
__device__ bool update_rows(const SelectParams<T>& p, const Call& call, int step, int i,
                            int sentence, int first_length, bool at_hand, Queue queue,
                            const float* lses, int fallback) {
  __shared__ int fault;  // of the last row that has one: 2 * (beam + 1), and 1 where it is broken
  const Ends ends = call.ends(p);
  if (threadIdx.x == 0) fault = 0;
  __syncthreads();
  bool open = false;
  int32_t* tokens = p.tokens + int64_t{step - 1} * p.total_rows + int64_t{sentence} * p.beams;
#pragma unroll 1
  for (int beam = threadIdx.x; beam < p.beams; beam += kThreads) {
    const int slot = sentence * p.beams + beam, row = i * p.beams + beam;
    const int length = beam < kThreads ? first_length : p.length[slot];
    const float lse = at_hand ? lses[beam] : __ldcg(p.lse + row);
    const int chosen = at_hand ? best_id(queue.keys[beam]) : __ldcg(&p.best[row].id);
    int taken = call.sentence.pad;
    if (length == 0) {
      const bool broken = isnan(lse) || lse == INFINITY;
      const int token = chosen < 0 ? fallback : chosen;
      const bool none_left = broken || token < 0;
      if (none_left) {
        atomicMax(&fault, 2 * (beam + 1) + broken);
      } else {
        taken = token;
      }
      const Extension to = {step, sentence, slot, taken};
      if (ends.stop_table != nullptr && !none_left) {
        p.stop.stop_states[int64_t{step - 1} * p.total_rows + slot] =
            stop_state(ends, to, p.total_rows, p.vocab);
      }
      if (none_left || row_ends(ends, to, p.total_rows, p.vocab)) {
        p.length[slot] = step;
      } else {
        open = true;
      }
    }
    tokens[beam] = taken;
  }
  open = __syncthreads_or(open);
  if (threadIdx.x == 0) {
    if (fault != 0) p.fault[sentence] = fault % 2 == 1 ? step : -step;
    if (!open) p.done[sentence] = 1;
  }
#pragma unroll 1
  for (int beam = threadIdx.x; beam < p.beams && open; beam += kThreads) {
    append_row(p, call, step, i, beam, tokens[beam]);
  }
  __syncthreads();
  return !open;
}

// From where all blocks see it: others have written it since this one read it.
__device__ __forceinline__ ActiveSentence load_active(const ActiveSentence* from) {
  return {__ldcg(&from->id), __ldcg(&from->number), __ldcg(&from->position)};
}

// Drops the sentences that are done and lists the rows of the others anew; returns how many go on.
// Those have been put one step on by blocks of their own.
template <typename T>
__device__ __forceinline__ int gather_active(const SelectParams<T>& p, int active_count) {
  int kept = 0;
#pragma unroll 1
  for (int base = 0; base < active_count; base += kThreads) {
    const int i = base + threadIdx.x;
    const ActiveSentence sentence = i < active_count ? load_active(p.active + i) : ActiveSentence{};
    const bool stays = i < active_count && __ldcg(p.done + sentence.id) == 0;
    int total;
    const int place = kept + block_rank(stays, total);
    if (stays) p.active[place] = sentence;  // this and what lies before it has been read
    kept += total;
  }
  __syncthreads();
#pragma unroll 1
  for (int place = warp_id(); place < kept; place += kWarps) {
    const ActiveSentence sentence = p.active[place];
    const int first = p.prompt_lengths[sentence.id], number = sentence.number - 1;
    const int random_first = p.config.sentences[sentence.id].random_first;
    const int32_t* tokens =
        p.tokens + int64_t{number - 1} * p.total_rows + int64_t{sentence.id} * p.beams;
#pragma unroll 1
    for (int beam = lane_id(); beam < p.beams; beam += 32) {
      append_row(p, number, first, random_first, place, beam, tokens[beam]);
    }
  }
  return kept;
}

// Ends the step. active_count: of the next one.
template <typename T>
__device__ __forceinline__ void store_state(const SelectParams<T>& p, StepState state,
                                            int active_count) {
  const StepState next = {state.number + 1, active_count};
  *p.state = next;
  if (active_count == 0) {
    __threadfence_system();  // whoever sees it in the host's memory sees the rest too
    *p.host_state = next;
  }
}

}  // namespace decoding::cuda::selection
