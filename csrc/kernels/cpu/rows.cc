// Bookkeeping of live rows. The contract is in rows.h.
#include "kernels/rows.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/stream.h"
#include "kernels/row_ends.h"

namespace decoding {
namespace {

void accept_token(const AcceptTokensParams& p, int row, int sentence, int slot) {
  const int64_t at = int64_t{p.step - 1} * p.slots + slot;
  if (p.length[slot] > 0) {
    p.tokens[at] = p.pad;
    return;
  }
  const int chosen = p.chosen[row].id >= 0 ? p.chosen[row].id : p.fallback;
  const bool broken = std::isnan(p.lse[row]) || p.lse[row] == INFINITY;
  if (broken || chosen < 0) {
    p.fault[sentence] = broken ? p.step : -p.step;
    p.tokens[at] = p.pad;
    p.length[slot] = p.step;
    return;
  }
  p.tokens[at] = chosen;
  const Extension to = {p.step, sentence, slot, chosen};
  if (p.ends.stop_table != nullptr) {
    p.ends.stop_states[at] = stop_state(p.ends, to, p.slots, p.vocab);
  }
  const bool by_host = p.ended != nullptr && p.ended[row];
  if (by_host || row_ends(p.ends, p.sentences[sentence], to, p.slots, p.vocab)) {
    p.length[slot] = p.step;
  }
}

}  // namespace

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
        p.random_row[kept * p.beams + beam] = p.sentences[sentence].random_first + beam;
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
  const cpu::Range mine = stream.share(p.live_count);
  for (int i = mine.begin; i < mine.end; ++i) {
    const int sentence = p.live[i];
    bool done = true;
    for (int beam = 0; beam < p.beams; ++beam) {
      const int slot = sentence * p.beams + beam;
      accept_token(p, i * p.beams + beam, sentence, slot);
      done &= p.length[slot] > 0;
    }
    if (done) p.done[sentence] = 1;
  }
  stream.barrier();
}

template void gather_live(cpu::Stream<cpu::Isa::DECODING_ISA>&, const GatherLiveParams&);
template void reset_slots(cpu::Stream<cpu::Isa::DECODING_ISA>&, const ResetSlotsParams&);
template void accept_tokens(cpu::Stream<cpu::Isa::DECODING_ISA>&, const AcceptTokensParams&);

}  // namespace decoding
