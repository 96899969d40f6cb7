// Bookkeeping of live rows: what the next step computes, and, where rows do not compete (greedy
// search, sampling), taking the chosen tokens in.
#pragma once

#include <cstdint>

#include "kernels/search/sentence.h"
#include "kernels/search/step.h"
#include "kernels/search/stop.h"
#include "kernels/search/topk.h"
#include "kernels/stream.h"

namespace decoding {

// Ends a step: drops the sentences that are done, and lists what the rows of the others read next.
struct GatherLiveParams {
  StepState* now;         // of the step that ends, then of the next
  const int32_t* done;    // [sentences]
  const int32_t* first;   // [sentences], position of the token that a row's first step reads
  const int32_t* tokens;  // [target, slots], of every step so far
  const SentenceRules* sentence_rules;  // [sentences]
  int32_t* live;                        // [sentences], sentence ids; its head is kept, in order
  int32_t* ids;                         // [live * beams], token of each row
  int32_t* at;                          // [live * beams], position of each row
  int32_t* random_row;                  // [live * beams], the row word of random numbers
  int beams, slots;
  StepState* seen = nullptr;  // CUDA: in the host's memory, `now` as it becomes
};

template <cpu::Isa isa>
void gather_live(cpu::Stream<isa>&, const GatherLiveParams&);
void gather_live(cuda::Stream&, const GatherLiveParams&);

// Begins a search: every row's history lies in its own slot, but the first `prefix` positions lie
// in the slot of its sentence's first row, which read the prompt for all.
struct ResetSlotsParams {
  int32_t* slots;  // [2, rows, history]
  int rows, beams, history, prefix;
};

template <cpu::Isa isa>
void reset_slots(cpu::Stream<isa>&, const ResetSlotsParams&);
void reset_slots(cuda::Stream&, const ResetSlotsParams&);

// Each row of a live sentence takes its token; a row that has ended keeps its length and writes
// pad.
struct AcceptTokensParams {
  const Candidate* chosen;              // [live * beams]; id -1: no token was left to choose
  const float* lse;                     // [live * beams], of the raw logits
  const int32_t* live;                  // [live], sentence ids
  const SentenceRules* sentence_rules;  // [sentences]
  const Ends* ends;                     // [1]
  const StepState* now;                 // [1]
  const uint8_t* ended = nullptr;       // [live * beams], 1: the host ends the row here
  int32_t* tokens;                      // [target, slots]
  int32_t* length;  // [slots], tokens of a row that has ended, 0 while it goes on
  int32_t* done;    // [sentences], 1 when every row has ended
  int32_t* fault;   // [sentences], the step at which logits were not finite; -step where
                    // none was left to choose
  int sentences;    // at least now->live_count
  int beams, slots, vocab, pad;
  int fallback;  // taken where none was left to choose; -1: that is a fault
};

template <cpu::Isa isa>
void accept_tokens(cpu::Stream<isa>&, const AcceptTokensParams&);
void accept_tokens(cuda::Stream&, const AcceptTokensParams&);

}  // namespace decoding
