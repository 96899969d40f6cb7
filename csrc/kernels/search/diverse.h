// One step of group diverse beam search (Vijayakumar et al. 2016) for every active sentence, by the
// rules of Hugging Face's transformers 4. The beams of a sentence form groups of K / N, each a beam
// search of its own (beam.h) with a finished list of its own. In a step they go in order, and with
// c the beams of earlier groups that have just taken a token,
//
//   candidates = the best m of S[beam] + processors(log-probability - penalty * c), over the group
//   those of the first K / N that end enter the group's list, S / g^a
//   the first K / N that do not end are the group's beams of the next step
//   a group stops when its list is full and the best candidate, be it one that ends, cannot beat
//   it; from then on its beams take `pad`, and at once where none of them goes on
//
// After a sentence's last step all beams of groups that go on enter their lists. When all groups
// have stopped the lists are merged.
//
// One list of each row's best serves all groups: at most K - K / N tokens are penalised, so the
// k = m + K - K / N best hold the m best of the others. Those that are penalised get their scores
// anew, through all processors.
#pragma once

#include <cstdint>

#include "kernels/search/beam.h"
#include "kernels/search/processors.h"
#include "kernels/search/topk.h"
#include "kernels/stream.h"

namespace decoding {

template <typename T>
struct DiverseStepParams {
  // A group's list is its share of the sentence's, of which max_finished is K. `sums` begin with 0
  // for the first beam of each group.
  BeamSearch search;
  const Candidate* best;  // [sentences * K, k], each row's best first; id -1 behind the last
  const float* lse;       // [sentences * K], taken off the values; null: they are log-probabilities
  // What made the values, without kPost. Null: nothing but bans and forced tokens did.
  const ProcessLogitsParams<T>* processors;
  int32_t* group_counts;  // [B, K], of which N are used: rows in a group's list, or kGroupStopped
  KeyedCandidate* queue;  // [sentences, K * k], scratch
  int sentences;          // at least state->active_count
  int k, m;               // m: 2 or 1 + eos.count, times K / N
};

constexpr int kGroupStopped = -1;

template <typename T, cpu::Isa isa>
void diverse_step(cpu::Stream<isa>&, const DiverseStepParams<T>&);
template <typename T>
void diverse_step(cuda::Stream&, const DiverseStepParams<T>&);

}  // namespace decoding
