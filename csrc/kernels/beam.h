// One step of beam search for every live sentence, by the rules of Hugging Face's beam search:
// with S the sum of a hypothesis's log-probabilities and g the number of tokens generated,
//
//   candidates = the best m of S[beam] + logit - lse over beams and tokens, lower beam * V + token
//                first among equals
//   those of the first K that end (an EOS, or the length limit) enter the finished list, S / g^a
//   the first K that do not end are the beams of the next step
//   a sentence stops when its K finished ones cannot be beaten: alive[0].S / L^a <= worst finished,
//   L = max_new under "never" with a > 0, else g; or, with early stopping, as soon as there are K
//
// Where too few candidates have a finite score, fill-ins stand in: beams and finished rows with a
// sum of kFillIn, which anything real beats.
//
// Hypotheses are a trellis: each step stores, for every slot, its token and the slot it extends.
#pragma once

#include <cstdint>

#include "kernels/stream.h"
#include "kernels/topk.h"

namespace decoding {

// S of a beam that stands in for none; at the start, all but the first do.
constexpr float kFillIn = -1e9f;

enum class EarlyStopping { no, yes, never };

// A finished row: the path that ends in `slot` at step length - 1, then `token`.
struct Hypothesis {
  float score;     // sum / length^a
  float sum;       // of log-probabilities, the end token's included
  int32_t length;  // tokens, the end token included; 0: a fill-in
  int32_t slot;    // the slot that `token` extends
  int32_t token;
};

struct BeamStepParams {
  // what the step reads
  const Candidate* best;  // [live * K, m] of the logits, best first
  const float* lse;       // [live * K]
  const int32_t* live;    // [live], sentence ids; slot = live id * K + beam
  const int32_t* eos;     // [eos_count]
  // what it keeps
  float* sums;              // [slots], S of the alive beams; slots = sentences * K
  int32_t* tokens;          // [target, slots]
  int32_t* parents;         // [target, slots]
  const int32_t* slots;     // [slots, history], where each row's history lies (attention.h)
  int32_t* next_slots;      // [slots, history], the same for the next step: up to `position`
  Hypothesis* finished;     // [sentences, K], best first
  int32_t* finished_count;  // [sentences]
  int32_t* done;            // [sentences], 1 when nothing can change; `finished` is then full
  int32_t* fault;           // [sentences], the step at which the logits were not finite
  Candidate* queue;         // [live, K * m], scratch: ids are beam * V + token
  int live_count, beams, m, vocab, eos_count;
  int total_slots;        // columns of the trellis
  int history;            // columns of slots
  int step;               // g, counted from 1
  int position;           // in the history, of the token that this step read
  int max_new;            // tokens that a row may have
  double length_penalty;  // a
  EarlyStopping early_stopping;
};

template <cpu::Isa isa>
void beam_step(cpu::Stream<isa>&, const BeamStepParams&);

}  // namespace decoding
