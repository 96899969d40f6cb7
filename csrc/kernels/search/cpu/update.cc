// Bookkeeping of live rows. The contract is in update.h.
#include "kernels/search/update.h"

#include <algorithm>

#include "kernels/cpu/stream.h"
#include "kernels/search/shared/append_row.h"

namespace decoding {

template <cpu::Isa isa>
void gather_live(cpu::Stream<isa>& stream, const GatherLiveParams& p) {
  if (stream.rank() == 0) {  // a few integers: not worth sharing
    const int32_t* last = p.tokens + int64_t{p.now->number - 1} * p.slots;
    int kept = 0;
    for (int i = 0; i < p.now->live_count; ++i) {
      const int sentence = p.live[i];
      if (p.done[sentence]) continue;
      for (int beam = 0; beam < p.beams; ++beam) {
        p.ids[kept * p.beams + beam] = last[sentence * p.beams + beam];
        p.at[kept * p.beams + beam] = p.first[sentence] + p.now->number;
        p.random_row[kept * p.beams + beam] = p.sentence_rules[sentence].random_first + beam;
      }
      p.live[kept++] = sentence;
    }
    *p.now = {p.now->number + 1, p.now->position + 1, kept};
  }
  stream.barrier();
}

template <cpu::Isa isa>
void reset_slots(cpu::Stream<isa>& stream, const ResetSlotsParams& p) {
  const cpu::Range mine = stream.share(2 * p.rows);
  for (int i = mine.begin; i < mine.end; ++i) {
    const int row = i % p.rows;
    int32_t* history = p.slots + int64_t{i} * p.history;
    std::fill_n(history, p.prefix, row / p.beams * p.beams);
    std::fill(history + p.prefix, history + p.history, row);
  }
  stream.barrier();
}

template <cpu::Isa isa>
void accept_tokens(cpu::Stream<isa>& stream, const AcceptTokensParams& p) {
  const cpu::Range mine = stream.share(p.now->live_count);
  for (int i = mine.begin; i < mine.end; ++i) {
    bool done = true;
    for (int beam = 0; beam < p.beams; ++beam) done &= accept_token(p, i, beam);
    if (done) p.done[p.live[i]] = 1;
  }
  stream.barrier();
}

template void gather_live(cpu::Stream<cpu::Isa::DECODING_ISA>&, const GatherLiveParams&);
template void reset_slots(cpu::Stream<cpu::Isa::DECODING_ISA>&, const ResetSlotsParams&);
template void accept_tokens(cpu::Stream<cpu::Isa::DECODING_ISA>&, const AcceptTokensParams&);

}  // namespace decoding
