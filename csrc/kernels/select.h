// Everything between the logits and the next step in one contract, because on CUDA it is one
// launch: the log-sum-exp of the raw logits, the rules, the choice of tokens, the bookkeeping of
// live rows. What each part means is said in logits.h, topk.h, sample.h, beam.h and rows.h; on the
// CPU the engine puts those parts together (engine/search.h).
#pragma once

#include <cstdint>

#include "kernels/beam.h"
#include "kernels/step.h"
#include "kernels/stream.h"
#include "kernels/topk.h"

namespace decoding {

enum class SearchKind { greedy, sampling, beam };

// What a call asks for; in the device's memory, so that captured steps serve every call.
struct SelectRules {
  int32_t max_new, min_new, pad;
  int32_t eos_count, banned_count, forced_first_count, forced_last_count;
  int32_t renormalize;  // 1: what the rules leave adds up to 1 again
  // sampling
  uint64_t seed;
  float temperature;
  int32_t top_k;  // 0: off
  float top_p;    // 1: off
  // beam search
  double length_penalty;
  EarlyStopping early_stopping;
};

template <typename T>
struct SelectParams {
  SearchKind kind;
  // what the step reads
  T* logits;                    // [sentences * beams, V], `stride` apart; banned ones become -inf
  const SelectRules* rules;     // [1]
  const int32_t* eos;           // [eos_count]
  const int32_t* banned;        // [banned_count], never chosen
  const int32_t* forced_first;  // [forced_first_count], the only tokens of step 1 where not empty
  const int32_t* forced_last;   // [forced_last_count], and of step max_new
  const int32_t* first;         // [B], see GatherLiveParams
  const int32_t* items;         // [B]
  // what the search keeps: beam.h and rows.h
  StepState* now;           // of this step, then of the next
  StepState* seen;          // in the host's memory: `now` as the step begins, and at its end where
                            // no sentence goes on; a write at every end would hold up the next step
  int32_t* live;            // [B]
  float* sums;              // [slots], slots = B * K of the plan
  int32_t* tokens;          // [target, slots]
  int32_t* parents;         // [target, slots]
  int32_t* slots;           // [2, slots, history]; step g reads table g % 2 and writes the other
  int32_t* length;          // [slots]
  Hypothesis* finished;     // [B, K]
  int32_t* finished_count;  // [B]
  int32_t* done;            // [B]
  int32_t* fault;           // [B]
  // what the next step reads
  int32_t* ids;         // [sentences * beams]
  int32_t* at;          // [sentences * beams]
  int32_t* random_row;  // [sentences * beams], this step's too
  // scratch
  float* group_max;  // [sentences * beams, G]
  float* group_sum;  // [sentences * beams, G]
  float* lse;        // [sentences * beams]
  Candidate* best;   // [sentences * beams, m]
  int32_t* tickets;  // [sentences * (beams + 1) + 1], 0 before and after
  int sentences;     // at least live_count: a captured step is made for so many
  int beams, m;      // m: candidates of a row, 1 but for beam search
  int vocab, stride, total_slots, history;  // stride: a multiple of 8
};

template <typename T>
void select(cuda::Stream&, const SelectParams<T>&);

}  // namespace decoding
