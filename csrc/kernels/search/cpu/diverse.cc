// One step of group diverse beam search, sentences shared over the threads. The rules are in
// diverse.h.
#include "kernels/search/diverse.h"

#include <algorithm>

#include "kernels/cpu/stream.h"
#include "kernels/search/shared/diverse.h"

namespace decoding {
namespace {

template <typename T>
void step_group(const BeamGroup<T>& group, KeyedCandidate* queue) {
  if (group.stopped()) return group.idle();
  int queued = 0;
  for (int place = 0; place < group.places(); ++place) {
    const Candidate next = group.candidate(place, [](T x) { return static_cast<float>(x); });
    if (next.id >= 0) queue[queued++] = {next.value, next};
  }
  const int best = std::min(queued, group.p.m);
  std::partial_sort(queue, queue + best, queue + queued, ahead);
  group.choose(best, [&](int c) { return queue[c].candidate; });
}

}  // namespace

template <typename T, cpu::Isa isa>
void diverse_step(cpu::Stream<isa>& stream, const DiverseStepParams<T>& p) {
  const cpu::Range mine = stream.share(p.search.state->active_count);
  for (int i = mine.begin; i < mine.end; ++i) {
    const BeamSentence sentence(p.search, i);
    if (sentence.faulty()) continue;
    for (int n = 0; n < p.search.config.search->groups; ++n) {
      step_group(BeamGroup<T>(p, sentence, n), p.queue + int64_t{i} * p.search.beams * p.k);
    }
    if (merge_groups(p, sentence)) sentence.inherit(0, 1);
  }
  stream.barrier();
}

template void diverse_step(cpu::Stream<cpu::Isa::DECODING_ISA>&, const DiverseStepParams<float>&);

}  // namespace decoding
