// One token of softmax(filtered logits) for every row, by the Gumbel-max trick: the argmax of
// logit / temperature + noise over the tokens that the filters keep (Kool et al. 2019). The noise
// of a token is -log(-log1p(-u)) with u = (x + 0.5) 2^-32 and x from Philox, keyed by the seed and
// counted by (token, step, row): the same draw for any batch, order or number of threads.
//
// Filters, in Hugging Face's order: temperature; top-k, ties at the k-th stay; top-p: the tokens
// whose preceding mass in descending order is below p, within what top-k kept.
#pragma once

#include <cstdint>

#include "kernels/search/config.h"
#include "kernels/search/step.h"
#include "kernels/search/topk.h"
#include "kernels/stream.h"

namespace decoding {

template <typename T>
struct SampleParams {
  const T* logits;               // [rows, V]
  const float* group_max;        // [rows, G]
  const int32_t* random_row;     // [rows], the row word of the counter
  const ActiveSentence* active;  // [active]; row i * beams + j is one of active[i]'s
  ConfigView config;             // seed, temperature, top_k, top_p; where scores are processed,
                                 // filters are done already
  Candidate* chosen;             // [rows], the token and its logit; {-inf, -1} where all are -inf
  Candidate* queue;              // [threads, V], scratch
  float* maxima;                 // [threads, G], scratch
  const StepState* state;        // [1]
  int beams, vocab;
};

template <typename T, cpu::Isa isa>
void sample(cpu::Stream<isa>&, const SampleParams<T>&);

}  // namespace decoding
