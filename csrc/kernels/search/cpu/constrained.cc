// One step of constrained beam search, sentences shared over the threads. The rules are in
// constrained.h.
#include "kernels/search/constrained.h"

#include "kernels/cpu/stream.h"
#include "kernels/search/shared/constrained.h"

namespace decoding {

template <cpu::Isa isa>
void constrained_step(cpu::Stream<isa>& stream, const ConstrainedStepParams& p) {
  const cpu::Range mine = stream.share(p.search.state->active_count);
  for (int i = mine.begin; i < mine.end; ++i) {
    const ConstrainedSentence sentence(p, i);
    if (sentence.step()) sentence.inherit(0, 1);
  }
  stream.barrier();
}

template void constrained_step(cpu::Stream<cpu::Isa::DECODING_ISA>&, const ConstrainedStepParams&);

}  // namespace decoding
