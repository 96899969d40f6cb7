// Contrastive search (Su et al. 2022): the K most probable tokens are all read, and the one goes on
// that is probable and yet unlike what the text has said so far. With p the probability of a
// candidate v, h(v) the model's last hidden state once it has read v, and h_j those of its context,
//
//   v* = argmax (1 - alpha) p(v) - alpha max_j cos(h(v), h_j)
//
// A step reads the K candidates of every sentence, one in each of its rows; then it is known which
// of them goes on, and from what the model says behind that one come the candidates of the next
// step. So the token of step g is chosen in step g + 1. All rows of a sentence share one history,
// which is a matter of the indirection table (decode.h), and hidden states are written once at
// (slot, position) as keys are.
#pragma once

#include <cstdint>

#include "kernels/search/beam.h"
#include "kernels/search/step.h"
#include "kernels/stream.h"

namespace decoding {

// Stores the hidden state of each row, and finds how much it is like its context.
template <typename T>
struct ContrastParams {
  const T* x;       // [sentences * K, H], hidden states of the step
  T* hidden;        // [total_rows, history, H], those of earlier steps, and then of this
  const T* prompt;  // [tokens, H], of the prompts but for their last tokens, packed;
                    // null where `hidden` holds them
  const int32_t* prompt_offsets;     // [B + 1], null with prompt
  const int32_t* cache_indirection;  // [2, total_rows, history]; step g reads table g % 2
  const ActiveSentence* active;      // [sentences]; slot = id * slots + row of the sentence
  const StepState* state;            // [1]
  float* similarity;                 // [sentences * K], the largest cosine; -inf without a context
  int sentences, beams;              // sentences: at least state->active_count; beams: K
  int size, total_rows, history;     // size: H
  int slots;  // cache rows of a sentence: beams, but where one row reads a prompt for all
};

template <typename T, cpu::Isa isa>
void contrast(cpu::Stream<isa>&, const ContrastParams<T>&);
template <typename T>
void contrast(cuda::Stream&, const ContrastParams<T>&);

// Chooses the token of the step before, and lists the candidates of this one. A sentence that ends
// leaves its row as the only one of its finished list.
struct ContrastStepParams {
  BeamSearch search;        // its sums are the candidates' probabilities, its lse unused
  const Candidate* best;    // [sentences * K, K] of the scores, best first; id -1 behind the last
  const float* lse;         // [sentences * K], of the scores; not finite: a fault
  const float* similarity;  // [sentences * K]
  int sentences;            // at least state->active_count
};

template <cpu::Isa isa>
void contrast_step(cpu::Stream<isa>&, const ContrastStepParams&);
void contrast_step(cuda::Stream&, const ContrastStepParams&);

}  // namespace decoding
