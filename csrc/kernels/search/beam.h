// One step of beam search for every active sentence, by the rules of Hugging Face's beam search:
// with S the sum of a hypothesis's log-probabilities and g the number of tokens generated,
//
//   merge_beams: candidates = the best m of S[beam] + logit - lse over beams and tokens, the lower
//                beam * V + token first among equals
//   beam_step:   those of the first K that end (stop.h, or the length limit) enter the finished
//                list, S / length^a
//                the first K that do not end are the beams of the next step, by S
//                a sentence stops when its finished ones, of which there are `max_finished`, cannot
//                be beaten: alive[0].S / L^a <= worst finished, L = max_new under "never" with a >
//                0, else g; or, with early stopping, as soon as there are so many
//
// Where too few candidates have a finite score, fill-ins stand in: beams and finished rows with a
// sum of kFillIn, which anything real beats.
//
// Hypotheses are a history: each step stores, for every slot, its token and the slot it extends.
#pragma once

#include <cstdint>

#include "kernels/search/config.h"
#include "kernels/search/step.h"
#include "kernels/search/stop.h"
#include "kernels/search/topk.h"
#include "kernels/stream.h"

namespace decoding {

// S of a beam that stands in for none; at the start, all but the first do.
constexpr float kFillIn = -1e9f;

// A finished row: the path that ends in `slot` at step length - 1, then `token`.
struct Hypothesis {
  float score;     // sum / length^a
  float sum;       // of log-probabilities, the end token's included
  int32_t length;  // tokens, the end token included; 0: a fill-in
  int32_t slot;    // the slot that `token` extends
  int32_t token;
};

// A candidate, and what it competes by.
struct KeyedCandidate {
  float key;
  Candidate candidate;
};

inline bool ahead(const KeyedCandidate& a, const KeyedCandidate& b) {
  return a.key != b.key ? a.key > b.key : a.candidate.id < b.candidate.id;
}

struct MergeBeamsParams {
  const Candidate* best;  // [sentences * K, k], each row's best first; id -1 behind the last
  const float* keys;      // [sentences * K, k], of sampled candidates: what decides instead of
                          // S + value; null: none were sampled
  const float* lse;       // [sentences * K], taken off the values; null: they are log-probabilities
  const float* sums;      // [total_rows], S of the alive beams
  const ActiveSentence* active;  // [sentences]; a beam's place in sums is id * K + beam
  ConfigView config;
  const StepState* state;  // [1]
  Candidate* candidates;   // [sentences, m], S + value - lse and beam * V + token; id -1 behind the
                           // last
  KeyedCandidate* queue;   // [sentences, K * k], scratch
  int sentences;           // at least state->active_count
  int beams, k, m, vocab;
};

// What all beam searches share.
struct BeamSearch {
  // what a step reads
  const float* lse;              // [sentences * K], of the raw logits
  const ActiveSentence* active;  // [sentences]
  ConfigView config;
  const StepState* state;  // [1]
  // what it keeps
  StopMemory stop;
  float* sums;                 // [total_rows]
  int32_t* tokens;             // [target, total_rows]
  int32_t* parents;            // [target, total_rows]
  int32_t* cache_indirection;  // [2, total_rows, history], where each row's history lies
                               // (decode.h); step g reads table g % 2 and writes the other
  Hypothesis* finished;        // [B, max_finished], best first
  int32_t* finished_count;     // [B]
  int32_t* done;               // [B], 1 when nothing can change; `finished` is then full
  int32_t* fault;              // [B], the step at which the logits were not finite
  int beams, vocab;
  int total_rows;  // columns of tokens and parents
  int history;     // columns of cache_indirection
};

struct BeamStepParams {
  BeamSearch search;
  Candidate* candidates;  // [sentences, m], merge_beams'; what is left of them is of no use
  const uint8_t* ended;   // [sentences, m], 1: the host ends the row here; null: it does not
  int sentences;          // at least state->active_count
  int m;
  bool sampled = false;  // in the order of drawing: the best by S of all m go on, not the first
};

template <cpu::Isa isa>
void merge_beams(cpu::Stream<isa>&, const MergeBeamsParams&);
void merge_beams(cuda::Stream&, const MergeBeamsParams&);

template <cpu::Isa isa>
void beam_step(cpu::Stream<isa>&, const BeamStepParams&);
void beam_step(cuda::Stream&, const BeamStepParams&);

}  // namespace decoding
