// How a row takes its token (update.h): one text for both devices.
#pragma once

#include <cmath>

#include "kernels/search/shared/stop.h"
#include "kernels/search/update.h"

namespace decoding {

// Row i * beams + beam, of live sentence i. Returns whether it has ended.
DECODING_EVERYWHERE inline bool accept_token(const AcceptTokensParams& p, int i, int beam) {
  const int step = p.now->number, sentence = p.live[i], row = i * p.beams + beam;
  const int slot = sentence * p.beams + beam;
  const int64_t at = int64_t{step - 1} * p.slots + slot;
  if (p.length[slot] > 0) {
    p.tokens[at] = p.pad;
    return true;
  }
  const int chosen = p.chosen[row].id >= 0 ? p.chosen[row].id : p.fallback;
  const bool broken = p.lse[row] != p.lse[row] || p.lse[row] == INFINITY;
  if (broken || chosen < 0) {
    p.fault[sentence] = broken ? step : -step;
    p.tokens[at] = p.pad;
    p.length[slot] = step;
    return true;
  }
  p.tokens[at] = chosen;
  const Extension to = {step, sentence, slot, chosen};
  if (p.ends->stop_table != nullptr) {
    p.ends->stop_states[at] = stop_state(*p.ends, to, p.slots, p.vocab);
  }
  const bool by_host = p.ended != nullptr && p.ended[row] != 0;
  const bool ends = by_host || row_ends(*p.ends, p.sentence_rules[sentence], to, p.slots, p.vocab);
  if (ends) p.length[slot] = step;
  return ends;
}

}  // namespace decoding
