// Filters: what sampling leaves of each row's scores x, in Hugging Face's order. Each sees -inf for
// what those before it took out; with p = softmax(x) and H = -sum of p log p of what there is,
//
//   temperature T   x / T
//   top_h h         of the 100 best, as if there were no others: best first, while the sum of
//                   -p log p is at most h H; the best always (Baghaei Potraghloo et al. 2025)
//   top_k k         x >= k-th largest: ties at the k-th stay (Fan et al. 2018)
//   top_p q         best first, as long as less than q precedes; the lower id first among equals
//                   (Holtzman et al. 2020)
//   min_p q         p >= q * largest p (Nguyen et al. 2024)
//   typical_p q     in ascending order of |-log p - H|, which is |x - sum of p x|, the shortest
//                   prefix with a mass of q; ties of its last stay (Meister et al. 2022)
//   epsilon e       p >= e; eta e: p >= min(e, sqrt(e) exp(-H)) (Hewitt et al. 2022)
//
// Each but top_h leaves at least the m best, typical_p the m first of its order, m = min_tokens;
// top_k raises k to m, and with epsilon and eta ties at the m-th stay.
#pragma once

#include <cstdint>

#include "kernels/search/config.h"
#include "kernels/search/step.h"
#include "kernels/search/topk.h"
#include "kernels/stream.h"

namespace decoding {

struct FilterParams {
  float* scores;  // [rows, V], `stride` apart, of active rows; -inf where a token is taken out
  ConfigView config;
  const StepState* state;        // rows = active_count * beams
  const ActiveSentence* active;  // [active_count]
  float* group_max;              // [rows, G], of what is left; on the CPU alone
  Candidate* queue = nullptr;    // [threads, V], scratch of the CPU
  float* maxima = nullptr;       // [threads, G], scratch of the CPU
  int sentences, beams;          // sentences: at least active_count
  int vocab, stride;
};

template <cpu::Isa isa>
void filter_scores(cpu::Stream<isa>&, const FilterParams&);
void filter_scores(cuda::Stream&, const FilterParams&);

}  // namespace decoding
