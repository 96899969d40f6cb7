// Bookkeeping of live rows. The contract is in rows.h.
#include "kernels/rows.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/stream.h"

namespace decoding {
namespace {

void accept_token(const AcceptTokensParams& p, int row, int sentence, int slot) {
  int32_t* token = p.tokens + int64_t{p.step - 1} * p.slots + slot;
  if (p.length[slot] > 0) {
    *token = p.pad;
    return;
  }
  const bool broken = std::isnan(p.lse[row]) || p.lse[row] == INFINITY;
  *token = p.chosen[row].id >= 0 ? p.chosen[row].id : p.fallback;
  bool ends = p.step == p.max_new;
  if (broken || *token < 0) {
    p.fault[sentence] = broken ? p.step : -p.step;
    *token = p.pad;
    ends = true;
  }
  for (int e = 0; e < p.eos_count; ++e) ends |= *token == p.eos[e];
  if (ends) p.length[slot] = p.step;
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
        p.random_row[kept * p.beams + beam] = p.items[sentence] * p.beams + beam;
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
