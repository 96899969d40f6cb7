// The rows of a step with guidance, rows shared over the threads. The contract is in guidance.h.
#include "kernels/search/guidance.h"

#include <algorithm>

#include "kernels/cpu/stream.h"

namespace decoding {

template <cpu::Isa isa>
void unconditional_rows(cpu::Stream<isa>& stream, const UnconditionalRowsParams& p) {
  const StepState state = *p.state;
  const int searched = p.sentences * p.beams;
  const cpu::Range mine = stream.share(searched);
  for (int row = mine.begin; row < mine.end; ++row) {
    const int i = row / p.beams, beam = row % p.beams;
    const bool goes_on = i < state.live_count;
    const int sentence = p.active[goes_on ? i : 0], unconditional = p.unconditional[sentence];
    p.all_active[i] = sentence;
    p.all_active[p.sentences + i] = unconditional;
    p.all_ids[row] = p.ids[goes_on ? row : beam];
    p.all_ids[searched + row] = state.number == 1 ? p.unconditional_ids[sentence] : p.all_ids[row];
    p.all_positions[row] = p.prompt_lengths[sentence] + state.number - 1;
    p.all_positions[searched + row] = p.prompt_lengths[unconditional] + state.number - 1;
    if (!goes_on) continue;
    const int64_t table = int64_t{state.number % 2} * p.total_rows;
    const int slot = sentence * p.beams + beam, distance = (unconditional - sentence) * p.beams;
    const int32_t* from = p.cache_indirection + (table + slot) * p.history;
    int32_t* to = p.cache_indirection + (table + slot + distance) * p.history;
    for (int t = 0; t < state.position; ++t) to[t] = from[t] + distance;
  }
  if (stream.rank() == 0)
    *p.all_state = {state.number, state.position, p.sentences + state.live_count};
  stream.barrier();
}

template void unconditional_rows(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                                 const UnconditionalRowsParams&);

}  // namespace decoding
