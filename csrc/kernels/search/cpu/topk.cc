// The k best of every row, rows shared over the threads. The idea is in topk.h.
#include "kernels/search/topk.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/groups.h"
#include "kernels/cpu/stream.h"

namespace decoding {

template <typename T, cpu::Isa isa>
void topk(cpu::Stream<isa>& stream, const TopKParams<T>& p) {
  const int groups = groups_of(p.vocab);
  Candidate* queue = p.queue + int64_t{stream.rank()} * p.vocab;
  float* maxima = p.maxima + int64_t{stream.rank()} * groups;
  const cpu::Range mine = stream.share(p.rows);
  for (int row = mine.begin; row < mine.end; ++row) {
    const float* group_max = p.group_max + int64_t{row} * groups;
    const float bound = cpu::bound_of_best(group_max, p.vocab, p.k, maxima);
    const int queued = cpu::queue_between(bound, INFINITY, p.logits + int64_t{row} * p.vocab,
                                          group_max, p.vocab, queue);
    const int kept = std::min(queued, p.k);
    std::nth_element(queue, queue + kept, queue + queued, cpu::Better());
    std::sort(queue, queue + kept, cpu::Better());
    Candidate* best = p.best + int64_t{row} * p.k;
    for (int i = 0; i < p.k; ++i) best[i] = i < kept ? queue[i] : Candidate{-INFINITY, -1};
  }
  stream.barrier();
}

template void topk(cpu::Stream<cpu::Isa::DECODING_ISA>&, const TopKParams<float>&);

}  // namespace decoding
