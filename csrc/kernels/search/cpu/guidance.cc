// The rows of a step with guidance, rows shared over the threads. The contract is in guidance.h.
#include "kernels/search/guidance.h"

#include <algorithm>

#include "kernels/cpu/stream.h"

namespace decoding {

template <cpu::Isa isa>
void shadow_rows(cpu::Stream<isa>& stream, const ShadowRowsParams& p) {
  const StepState now = *p.now;
  const int searched = p.sentences * p.beams;
  const cpu::Range mine = stream.share(searched);
  for (int row = mine.begin; row < mine.end; ++row) {
    const int i = row / p.beams, beam = row % p.beams;
    const bool goes_on = i < now.live_count;
    const int sentence = p.live[goes_on ? i : 0], shadow = p.shadow[sentence];
    p.all_live[i] = sentence;
    p.all_live[p.sentences + i] = shadow;
    p.all_ids[row] = p.ids[goes_on ? row : beam];
    p.all_ids[searched + row] = now.number == 1 ? p.shadow_ids[sentence] : p.all_ids[row];
    p.all_at[row] = p.first[sentence] + now.number - 1;
    p.all_at[searched + row] = p.first[shadow] + now.number - 1;
    if (!goes_on) continue;
    const int64_t table = int64_t{now.number % 2} * p.total_slots;
    const int slot = sentence * p.beams + beam, behind = (shadow - sentence) * p.beams;
    const int32_t* from = p.slots + (table + slot) * p.history;
    int32_t* to = p.slots + (table + slot + behind) * p.history;
    for (int t = 0; t < now.position; ++t) to[t] = from[t] + behind;
  }
  if (stream.rank() == 0) *p.all_now = {now.number, now.position, p.sentences + now.live_count};
  stream.barrier();
}

template void shadow_rows(cpu::Stream<cpu::Isa::DECODING_ISA>&, const ShadowRowsParams&);

}  // namespace decoding
