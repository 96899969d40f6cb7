// One step of lexically constrained beam search for every active sentence: a beam search (beam.h)
// whose rows must hold phrases (constraints.h), by the rules of Hugging Face's transformers 4. The
// candidates are those of merge_beams.
//
//   those of the first K that end and hold all phrases enter the finished list, S / g^a
//   next_beams = the first K that do not end, and each row by each token that brings it further
//   rows of equal progress form a bank; banks give their best rows in turns, that of the highest
//   bank first, until K beams of the next step are found (Post and Vilar 2018)
//   a sentence stops when its list is full and the best candidate, be it one that ends, cannot beat
//   it; after its last step the beams that hold all phrases enter the list
//
// So that no result lacks a phrase, rows that hold all and end out of turn are spare: where too few
// rows finish, they follow them. And as long as there is neither, the last row that holds all
// phrases goes on with its best token.
#pragma once

#include <cstdint>

#include "kernels/search/beam.h"
#include "kernels/search/constraints.h"
#include "kernels/search/topk.h"
#include "kernels/stream.h"

namespace decoding {

// A possible beam of the next step.
struct Ranked {
  Candidate candidate;
  int32_t bank, turn;
};

struct ConstrainedStepParams {
  BeamSearch search;            // max_finished K
  const Phrases* phrases;       // [1]
  const Candidate* candidates;  // [sentences, m], best first; id -1 behind the last
  const Candidate* best;        // [sentences * K, k], each row's best first; id -1 behind the last
  const float* scores;          // [sentences * K, V], `stride` apart: log-probabilities
  // [2, slots, kProgress + phrases], of each row; step g reads table g % 2 and writes the other
  int32_t* progress;
  Hypothesis* spare;     // [B, K], best first
  int32_t* spare_count;  // [B]
  Ranked* queue;         // [sentences, K * (1 + most_wanted)], scratch
  int sentences;         // at least state->active_count
  int k, m, stride;
};

template <cpu::Isa isa>
void constrained_step(cpu::Stream<isa>&, const ConstrainedStepParams&);
void constrained_step(cuda::Stream&, const ConstrainedStepParams&);

}  // namespace decoding
