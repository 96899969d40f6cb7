// Draws without replacement from softmax(x + S), for sampling inside beams: the m tokens of every
// row whose x + S + noise is largest, in that order (Gumbel-top-k, Kool et al. 2019). The noise is
// that of sampling.h. Since no other token comes before them, the samples from all rows of a
// sentence are the best keys of their lists.
//
// Keys are float32: where S is a fill-in's -1e9, rounding leaves nothing of the noise, so such rows
// come last, by x + S.
#pragma once

#include <cstdint>

#include "kernels/search/config.h"
#include "kernels/search/step.h"
#include "kernels/search/topk.h"
#include "kernels/stream.h"

namespace decoding {

struct SampleCandidatesParams {
  const float* scores;           // [rows, V], `stride` apart, x: log-probabilities after the
                                 // filters
  const float* sums;             // [total_rows], S; slot = sentence id * beams + beam
  ConfigView config;             // a row's word is its sentence's random_first + beam
  const StepState* state;        // rows = active_count * beams
  const ActiveSentence* active;  // [active_count]
  Candidate* best;               // [rows, m], x and id; {-inf, -1} behind the last finite x
  float* keys;                   // [rows, m], x + S + noise, falling; -inf behind the last
  float* perturbed = nullptr;    // [rows, V], scratch of CUDA
  int sentences, beams, m;       // sentences: at least active_count
  int vocab, stride;
};

template <cpu::Isa isa>
void sample_candidates(cpu::Stream<isa>&, const SampleCandidatesParams&);
void sample_candidates(cuda::Stream&, const SampleCandidatesParams&);

}  // namespace decoding
