// Bookkeeping of active rows. The contract is in update.h.
#include "kernels/search/update.h"

#include <algorithm>

#include "kernels/cpu/stream.h"
#include "kernels/search/shared/append_row.h"

namespace decoding {

template <cpu::Isa isa>
void gather_active(cpu::Stream<isa>& stream, const GatherActiveParams& p) {
  if (stream.rank() == 0) {  // a few integers: not worth sharing
    int kept = 0;
    for (int i = 0; i < p.state->active_count; ++i) {
      const ActiveSentence sentence = p.active[i];
      if (p.done[sentence.id]) continue;
      const int32_t* last = p.tokens + int64_t{sentence.number - 1} * p.total_rows;
      for (int beam = 0; beam < p.beams; ++beam) {
        const int row = kept * p.beams + beam;
        p.ids[row] = last[sentence.id * p.beams + beam];
        p.positions[row] = p.prompt_lengths[sentence.id] + sentence.number;
        p.random_row[row] = p.config.sentences[sentence.id].random_first + beam;
      }
      p.active[kept++] = sentence.next();
    }
    *p.state = {p.state->number + 1, kept};
  }
  stream.barrier();
}

template <cpu::Isa isa>
void reset_cache_indirection(cpu::Stream<isa>& stream, const ResetCacheIndirectionParams& p) {
  const cpu::Range mine = stream.share(2 * p.rows);
  for (int i = mine.begin; i < mine.end; ++i) {
    const int row = i % p.rows;
    int32_t* history = p.cache_indirection + int64_t{i} * p.history;
    std::fill_n(history, p.prefix, row / p.beams * p.beams);
    std::fill(history + p.prefix, history + p.history, row);
  }
  stream.barrier();
}

template <cpu::Isa isa>
void update_rows(cpu::Stream<isa>& stream, const UpdateRowsParams& p) {
  const cpu::Range mine = stream.share(p.state->active_count);
  for (int i = mine.begin; i < mine.end; ++i) {
    bool done = true;
    for (int beam = 0; beam < p.beams; ++beam) done &= append_token(p, i, beam);
    if (done) p.done[p.active[i].id] = 1;
  }
  stream.barrier();
}

template void gather_active(cpu::Stream<cpu::Isa::DECODING_ISA>&, const GatherActiveParams&);
template void reset_cache_indirection(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                                      const ResetCacheIndirectionParams&);
template void update_rows(cpu::Stream<cpu::Isa::DECODING_ISA>&, const UpdateRowsParams&);

}  // namespace decoding
