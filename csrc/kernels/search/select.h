// Everything between the logits and the next step in one contract, because on CUDA it is one
// launch: the log-sum-exp of the raw logits, bans and forced tokens, the choice of tokens, the
// bookkeeping of active rows. What each part means is said in logits.h, topk.h, sampling.h, beam.h
// and update.h; on the CPU the engine puts those parts together (engine/cpu/select.h).
#pragma once

#include <cstdint>

#include "kernels/search/beam.h"
#include "kernels/search/config.h"
#include "kernels/search/step.h"
#include "kernels/search/topk.h"
#include "kernels/stream.h"

namespace decoding {

enum class SearchKind { greedy, sampling, beam };

// The whole of it, or up to what may follow, which other kernels then update rows with: a call's
// own functions look at it first, or the search is one of the rarer ones.
enum class SelectPart { all, candidates };

template <typename T>
struct SelectParams {
  SearchKind kind;
  SelectPart part;
  // what the step reads
  T* logits;  // [sentences * beams, V], `stride` apart; banned ones become -inf
  ConfigView config;
  const int32_t* prompt_lengths;  // [B], see GatherActiveParams
  // what the search keeps: beam.h and update.h
  StepState* state;       // of this step, then of the next
  StepState* host_state;  // in the host's memory: `state` as the step begins, and at its end where
                          // no sentence goes on; a write at every end would hold up the next step
  StopMemory stop;
  ActiveSentence* active;  // [B], of this step, then of the next
  float* sums;             // [total_rows = B * K of the plan]
  int32_t* tokens;         // [target, total_rows]
  int32_t* parents;        // [target, total_rows]
  int32_t*
      cache_indirection;  // [2, total_rows, history]; step g reads table g % 2 and writes the other
  int32_t* length;        // [total_rows]
  Hypothesis* finished;   // [B, K]
  int32_t* finished_count;  // [B]
  int32_t* done;            // [B]
  int32_t* fault;           // [B]
  // what the next step reads
  int32_t* ids;         // [sentences * beams]
  int32_t* positions;   // [sentences * beams]
  int32_t* random_row;  // [sentences * beams], this step's too
  // scratch
  float* group_max;   // [sentences * beams, G]
  float* group_sum;   // [sentences * beams, G]
  float* lse;         // [sentences * beams], of the logits; with processed scores it is given
  Candidate* best;    // [sentences * beams, m]
  int32_t* arrivals;  // [sentences * (beams + 1) + 1], 0 before and after
  int sentences;      // at least active_count: a captured step is made for so many
  int beams, m;       // m: candidates of a row, 1 but for beam search
  int vocab, stride, total_rows, history;  // stride: a multiple of 8
};

template <typename T>
void select(cuda::Stream&, const SelectParams<T>&);

}  // namespace decoding
