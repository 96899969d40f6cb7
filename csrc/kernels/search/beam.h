// One step of beam search for every live sentence, by the rules of Hugging Face's beam search:
// with S the sum of a hypothesis's log-probabilities and g the number of tokens generated,
//
//   merge_beams: candidates = the best m of S[beam] + logit - lse over beams and tokens, the lower
//                beam * V + token first among equals
//   beam_step:   those of the first K that end (stop.h, or the length limit) enter the finished
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

#include "kernels/search/sentence.h"
#include "kernels/search/step.h"
#include "kernels/search/stop.h"
#include "kernels/search/topk.h"
#include "kernels/stream.h"

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

inline bool ahead(const Contender& a, const Contender& b) {
  return a.key != b.key ? a.key > b.key : a.candidate.id < b.candidate.id;
}

// What a call asks of a beam search; in the device's memory, so that captured steps serve every
// call.
struct BeamRules {
  double length_penalty = 1.0;  // a
  LengthNormalization normalization = LengthNormalization::power;
  EarlyStopping early_stopping = EarlyStopping::no;
  int32_t capacity = 1;          // places of a sentence's finished list
  float sibling_penalty = 0.0f;  // taken off the key of a row's q-th best, q times (Li et al. 2016)
  // group diverse beam search, see diverse.h
  float group_penalty = 0.0f;
  int32_t groups = 1, pad = 0;
  int32_t forced_last = 0;  // 1: the tokens of the last step are forced
};

struct MergeBeamsParams {
  const Candidate* best;  // [sentences * K, k], each row's best first; id -1 behind the last
  const float* keys;      // [sentences * K, k], of drawn candidates: what decides instead of
                          // S + value; null: none were drawn
  const float* lse;       // [sentences * K], taken off the values; null: they are log-probabilities
  const float* sums;      // [slots], S of the alive beams; slots = sentences * K
  const int32_t* live;    // [sentences], sentence ids; slot = live id * K + beam
  const BeamRules* rules;  // [1]
  const StepState* now;    // [1]
  Candidate* candidates;   // [sentences, m], S + value - lse and beam * V + token; id -1 behind the
                           // last
  Contender* queue;        // [sentences, K * k], scratch
  int sentences;           // at least now->live_count
  int beams, k, m, vocab;
};

// What all beam searches share.
struct BeamSearch {
  // what a step reads
  const float* lse;                // [sentences * K], of the raw logits
  const int32_t* live;             // [sentences]
  const SentenceRules* sentences;  // [B]
  const Ends* ends;                // [1]
  const BeamRules* rules;          // [1]
  const StepState* now;            // [1]
  // what it keeps
  float* sums;              // [slots]
  int32_t* tokens;          // [target, slots]
  int32_t* parents;         // [target, slots]
  int32_t* slots;           // [2, slots, history], where each row's history lies (attention.h);
                            // step g reads table g % 2 and writes the other
  Hypothesis* finished;     // [B, capacity], best first
  int32_t* finished_count;  // [B]
  int32_t* done;            // [B], 1 when nothing can change; `finished` is then full
  int32_t* fault;           // [B], the step at which the logits were not finite
  int beams, vocab;
  int total_slots;  // columns of the trellis
  int history;      // columns of slots
};

struct BeamStepParams {
  BeamSearch search;
  Candidate* candidates;  // [sentences, m], merge_beams'; what is left of them is of no use
  const uint8_t* ended;   // [sentences, m], 1: the host ends the row here; null: it does not
  int sentences;          // at least now->live_count
  int m;
  bool drawn = false;  // in the order of drawing: the best by S of all m go on, not the first
};

template <cpu::Isa isa>
void merge_beams(cpu::Stream<isa>&, const MergeBeamsParams&);
void merge_beams(cuda::Stream&, const MergeBeamsParams&);

template <cpu::Isa isa>
void beam_step(cpu::Stream<isa>&, const BeamStepParams&);
void beam_step(cuda::Stream&, const BeamStepParams&);

}  // namespace decoding
