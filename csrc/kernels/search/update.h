// Bookkeeping of active rows: what the next step computes, and, where rows do not compete (greedy
// search, sampling), taking the chosen tokens in.
#pragma once

#include <cstdint>

#include "kernels/search/config.h"
#include "kernels/search/step.h"
#include "kernels/search/stop.h"
#include "kernels/search/topk.h"
#include "kernels/stream.h"

namespace decoding {

// Ends a step: drops the sentences that are done, puts the others one step on, and lists what their
// rows read next.
struct GatherActiveParams {
  StepState* state;               // of the step that ends, then of the next
  const int32_t* done;            // [sentences]
  const int32_t* prompt_lengths;  // [sentences], tokens before the one that the first step reads
  const int32_t* tokens;          // [target, total_rows], of every step so far
  ConfigView config;
  ActiveSentence* active;  // [sentences], likewise; those that go on move up, in order
  int32_t* ids;            // [active * beams], token of each row
  int32_t* positions;      // [active * beams], position of each row
  int32_t* random_row;     // [active * beams], the row word of random numbers
  int beams, total_rows;
  StepState* host_state = nullptr;  // CUDA: in the host's memory, `state` as it becomes
};

template <cpu::Isa isa>
void gather_active(cpu::Stream<isa>&, const GatherActiveParams&);
void gather_active(cuda::Stream&, const GatherActiveParams&);

// Begins a search: every row's history lies in its own slot, but the first `prefix` positions lie
// in the slot of its sentence's first row, which read the prompt for all.
struct ResetCacheIndirectionParams {
  int32_t* cache_indirection;  // [2, rows, history]
  int rows, beams, history, prefix;
};

template <cpu::Isa isa>
void reset_cache_indirection(cpu::Stream<isa>&, const ResetCacheIndirectionParams&);
void reset_cache_indirection(cuda::Stream&, const ResetCacheIndirectionParams&);

// Each row of an active sentence takes its token; a row that has ended keeps its length and writes
// pad.
struct UpdateRowsParams {
  const Candidate* chosen;       // [active * beams]; id -1: no token was left to choose
  const float* lse;              // [active * beams], of the raw logits
  const ActiveSentence* active;  // [active]
  ConfigView config;
  StopMemory stop;
  const StepState* state;          // [1]
  const uint8_t* ended = nullptr;  // [active * beams], 1: the host ends the row here
  int32_t* tokens;                 // [target, total_rows]
  int32_t* length;  // [total_rows], tokens of a row that has ended, 0 while it goes on
  int32_t* done;    // [sentences], 1 when every row has ended
  int32_t* fault;   // [sentences], the step at which logits were not finite; -step where
                    // none was left to choose
  int sentences;    // at least state->active_count
  int beams, total_rows, vocab;
  int fallback;  // taken where none was left to choose; -1: that is a fault
};

template <cpu::Isa isa>
void update_rows(cpu::Stream<isa>&, const UpdateRowsParams&);
void update_rows(cuda::Stream&, const UpdateRowsParams&);

}  // namespace decoding
