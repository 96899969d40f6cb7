// One step of beam search for every live sentence, by the rules of Hugging Face's beam search:
// with S the sum of a hypothesis's log-probabilities and g the number of tokens generated,
//
//   merge_beams: candidates = the best m of S[beam] + logit - lse over beams and tokens, the lower
//                beam * V + token first among equals
//   beam_step:   those of the first K that end (ends.h, or the length limit) enter the finished
//                list, S / length^a
//                the first K that do not end are the beams of the next step, by S
//                a sentence stops when its finished ones, of which there are `capacity`, cannot be
//                beaten: alive[0].S / L^a <= worst finished, L = max_new under "never" with a > 0,
//                else g; or, with early stopping, as soon as there are so many
//
// Where too few candidates have a finite score, fill-ins stand in: beams and finished rows with a
// sum of kFillIn, which anything real beats.
//
// Hypotheses are a trellis: each step stores, for every slot, its token and the slot it extends.
#pragma once

#include <cstdint>

#include "kernels/ends.h"
#include "kernels/sentence.h"
#include "kernels/step.h"
#include "kernels/stream.h"
#include "kernels/topk.h"

namespace decoding {

// S of a beam that stands in for none; at the start, all but the first do.
constexpr float kFillIn = -1e9f;

enum class EarlyStopping { no, yes, never };

// What a row's sum is divided by: tokens^a, or ((5 + tokens) / 6)^a (Wu et al. 2016).
enum class LengthNormalization { power, gnmt };

// A finished row: the path that ends in `slot` at step length - 1, then `token`.
struct Hypothesis {
  float score;     // sum / length^a
  float sum;       // of log-probabilities, the end token's included
  int32_t length;  // tokens, the end token included; 0: a fill-in
  int32_t slot;    // the slot that `token` extends
  int32_t token;
};

// A candidate, and what it competes by.
struct Contender {
  float key;
  Candidate candidate;
};

struct MergeBeamsParams {
  const Candidate* best;  // [live * K, k], each row's best first; id -1 behind the last
  const float* keys;      // [live * K, k], of drawn candidates: what decides instead of S + value;
                          // null: none were drawn
  const float* lse;       // [live * K], taken off the values; null: they are log-probabilities
  const float* sums;      // [slots], S of the alive beams; slots = sentences * K
  const int32_t* live;    // [live], sentence ids; slot = live id * K + beam
  Candidate* candidates;  // [live, m], S + value - lse and beam * V + token; id -1 behind the last
  Contender* queue;       // [live, K * k], scratch
  int live_count, beams, k, m, vocab;
  // Taken off the key of a row's q-th best, q = 1, 2, ... (Li, Monroe, Jurafsky 2016).
  float sibling_penalty;
};

// What all beam searches share.
struct BeamSearch {
  // what a step reads
  const float* lse;                // [live * K], of the raw logits
  const int32_t* live;             // [live]
  const SentenceRules* sentences;  // [sentences]
  Ends ends;
  // what it keeps
  float* sums;              // [slots]
  int32_t* tokens;          // [target, slots]
  int32_t* parents;         // [target, slots]
  const int32_t* slots;     // [slots, history], where each row's history lies (attention.h)
  int32_t* next_slots;      // [slots, history], the same for the next step: up to `position`
  Hypothesis* finished;     // [sentences, capacity], best first
  int32_t* finished_count;  // [sentences]
  int32_t* done;            // [sentences], 1 when nothing can change; `finished` is then full
  int32_t* fault;           // [sentences], the step at which the logits were not finite
  StepState now;
  int beams, capacity, vocab;
  int total_slots;        // columns of the trellis
  int history;            // columns of slots
  double length_penalty;  // a
  LengthNormalization normalization;
  EarlyStopping early_stopping;
};

struct BeamStepParams {
  BeamSearch search;
  Candidate* candidates;  // [live, m], merge_beams'; what is left of them is of no use
  const uint8_t* ended;   // [live, m], 1: the host ends the row here; null: it does not
  int m;
  bool drawn = false;  // in the order of drawing: the best by S of all m go on, not the first
};

template <cpu::Isa isa>
void merge_beams(cpu::Stream<isa>&, const MergeBeamsParams&);

template <cpu::Isa isa>
void beam_step(cpu::Stream<isa>&, const BeamStepParams&);

}  // namespace decoding
