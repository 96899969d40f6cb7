// One step of beam search, sentences shared over the threads. The rules are in beam.h.
#include "kernels/search/beam.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/stream.h"
#include "kernels/search/shared/beam.h"

namespace decoding {
namespace {

// Queues every continuation of active sentence i that has a finite score; returns how many.
int queue_candidates(const MergeBeamsParams& p, int i, KeyedCandidate* queue) {
  const int sentence = p.active[i].id;
  const float penalty = p.config.sentences[sentence].beam.sibling_penalty;
  int queued = 0;
  for (int beam = 0; beam < p.beams; ++beam) {
    const int64_t row = int64_t{i} * p.beams + beam, first = row * p.k;
    const float sum = p.sums[sentence * p.beams + beam];
    const float lse = p.lse != nullptr ? p.lse[row] : 0.0f;
    if (!std::isfinite(lse)) continue;  // a fault, which beam_step reports
    for (int c = 0; c < p.k && p.best[first + c].id >= 0; ++c) {
      const Candidate& next = p.best[first + c];
      const float total = sum + (next.value - lse);
      const float key = p.keys != nullptr ? p.keys[first + c] : total;
      queue[queued++] = {key - penalty * (c + 1), {total, beam * p.vocab + next.id}};
    }
  }
  return queued;
}

}  // namespace

template <cpu::Isa isa>
void merge_beams(cpu::Stream<isa>& stream, const MergeBeamsParams& p) {
  const cpu::Range mine = stream.share(p.state->active_count);
  for (int i = mine.begin; i < mine.end; ++i) {
    KeyedCandidate* queue = p.queue + int64_t{i} * p.beams * p.k;
    const int queued = queue_candidates(p, i, queue), count = std::min(queued, p.m);
    std::partial_sort(queue, queue + count, queue + queued, ahead);
    Candidate* candidates = p.candidates + int64_t{i} * p.m;
    for (int c = 0; c < p.m; ++c) {
      candidates[c] = c < count ? queue[c].candidate : Candidate{-INFINITY, -1};
    }
  }
  stream.barrier();
}

template <cpu::Isa isa>
void beam_step(cpu::Stream<isa>& stream, const BeamStepParams& p) {
  const cpu::Range mine = stream.share(p.search.state->active_count);
  for (int i = mine.begin; i < mine.end; ++i) {
    if (step_sentence(p, i)) BeamSentence(p.search, i).inherit(0, 1);
  }
  stream.barrier();
}

template void merge_beams(cpu::Stream<cpu::Isa::DECODING_ISA>&, const MergeBeamsParams&);
template void beam_step(cpu::Stream<cpu::Isa::DECODING_ISA>&, const BeamStepParams&);

}  // namespace decoding
