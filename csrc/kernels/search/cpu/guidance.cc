// The rows of a step with guidance, rows shared over the threads. The contract is in guidance.h.
#include "kernels/search/guidance.h"

#include <algorithm>

#include "kernels/cpu/stream.h"

namespace decoding {

template <cpu::Isa isa>
void unconditional_rows(cpu::Stream<isa>& stream, const UnconditionalRowsParams& p) {
  const int active_count = p.state->active_count;
  const int searched = p.sentences * p.beams;
  const cpu::Range mine = stream.share(searched);
  for (int row = mine.begin; row < mine.end; ++row) {
    const int i = row / p.beams, beam = row % p.beams;
    const bool goes_on = i < active_count;
    const ActiveSentence sentence = p.active[goes_on ? i : 0];
    const ActiveSentence twin = unconditional_twin(p, sentence);
    const int id = p.ids[goes_on ? row : beam], before = sentence.number - 1;
    p.all_active[i] = sentence;
    p.all_active[p.sentences + i] = twin;
    p.all_ids[row] = id;
    p.all_ids[searched + row] = before == 0 ? p.unconditional_ids[sentence.id] : id;
    p.all_positions[row] = p.prompt_lengths[sentence.id] + before;
    p.all_positions[searched + row] = p.prompt_lengths[twin.id] + before;
    if (!goes_on) continue;
    const int64_t table = int64_t{sentence.table()} * p.total_rows;
    const int slot = sentence.id * p.beams + beam, distance = (twin.id - sentence.id) * p.beams;
    const int32_t* from = p.cache_indirection + (table + slot) * p.history;
    int32_t* to = p.cache_indirection + (table + slot + distance) * p.history;
    for (int t = 0; t < sentence.position; ++t) to[t] = from[t] + distance;
  }
  if (stream.rank() == 0) *p.all_state = {p.state->number, p.sentences + active_count};
  stream.barrier();
}

template void unconditional_rows(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                                 const UnconditionalRowsParams&);

}  // namespace decoding
