// Everything between the logits and the next step in one contract, because on CUDA it is one
// launch: the log-sum-exp of the raw logits, the rules, the choice of tokens, the bookkeeping of
// live rows. What each part means is said in logits.h, topk.h, sampling.h, beam.h and update.h; on
// the CPU the engine puts those parts together (engine/search/request.h).
#pragma once

#include <cstdint>

#include "kernels/search/beam.h"
#include "kernels/search/sentence.h"
#include "kernels/search/step.h"
#include "kernels/search/topk.h"
#include "kernels/stream.h"

namespace decoding {

enum class SearchKind { greedy, sampling, beam };

// The whole of it, or up to what may follow, for those that take it in by other kernels: a call's
// own functions look at it first, or the search is one of the rarer ones.
enum class SelectPart { all, pick };

// What a call asks for; in the device's memory, so that captured steps serve every call.
struct SelectRules {
  int32_t min_new, pad;
  int32_t eos_count, banned_count, forced_last_count;
  int32_t renormalize;  // 1: what the rules leave adds up to 1 again
  // 1: what is chosen from are scores, to which all of the above and the warpers have been done
  // (processors.h); where rows compete they are log-probabilities
  int32_t processed;
  const int32_t* stop_table;  // see stop.h; null: no stop strings
  // beam search
  double length_penalty;
  EarlyStopping early_stopping;
};

template <typename T>
struct SelectParams {
  SearchKind kind;
  SelectPart part;
  // what the step reads
  T* logits;                 // [sentences * beams, V], `stride` apart; banned ones become -inf
  const SelectRules* rules;  // [1]
  const SentenceRules* sentence_rules;  // [B]
  const int32_t* eos;                   // [eos_count]
  const int32_t* banned;                // [banned_count], never chosen
  const int32_t* forced_last;  // [forced_last_count], the only tokens of a sentence's last step
  const int32_t* stop_now;     // [1], see stop.h
  const int32_t* stop_first;   // [B]
  const int32_t* first;        // [B], see GatherLiveParams
  // what the search keeps: beam.h and update.h
  StepState* now;           // of this step, then of the next
  StepState* seen;          // in the host's memory: `now` as the step begins, and at its end where
                            // no sentence goes on; a write at every end would hold up the next step
  int32_t* live;            // [B]
  float* sums;              // [slots], slots = B * K of the plan
  int32_t* tokens;          // [target, slots]
  int32_t* parents;         // [target, slots]
  int32_t* stop_states;     // [target, slots]
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
  float* lse;        // [sentences * beams], of the logits; with processed scores it is given
  Candidate* best;   // [sentences * beams, m]
  int32_t* tickets;  // [sentences * (beams + 1) + 1], 0 before and after
  int sentences;     // at least live_count: a captured step is made for so many
  int beams, m;      // m: candidates of a row, 1 but for beam search
  int vocab, stride, total_slots, history;  // stride: a multiple of 8
};

template <typename T>
void select(cuda::Stream&, const SelectParams<T>&);

}  // namespace decoding
