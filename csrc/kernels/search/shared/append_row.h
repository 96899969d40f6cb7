// How a row takes its token (update.h): one text for both devices.
#pragma once

#include <cmath>

#include "kernels/search/shared/stop.h"
#include "kernels/search/update.h"

namespace decoding {

// Row i * beams + beam, of active sentence i. Returns whether it has ended.
DECODING_EVERYWHERE inline bool append_token(const UpdateRowsParams& p, int i, int beam) {
  const int step = p.active[i].number, sentence = p.active[i].id, row = i * p.beams + beam;
  const SentenceConfig& config = p.config.sentences[sentence];
  const int slot = sentence * p.beams + beam;
  const int64_t at = int64_t{step - 1} * p.total_rows + slot;
  if (p.length[slot] > 0) {
    p.tokens[at] = config.pad;
    return true;
  }
  const int chosen = p.chosen[row].id >= 0 ? p.chosen[row].id : p.fallback;
  const bool broken = p.lse[row] != p.lse[row] || p.lse[row] == INFINITY;
  if (broken || chosen < 0) {
    p.fault[sentence] = broken ? step : -step;
    p.tokens[at] = config.pad;
    p.length[slot] = step;
    return true;
  }
  p.tokens[at] = chosen;
  const Extension to = {step, sentence, slot, chosen};
  const Ends ends(p.config, config, p.stop, sentence);
  if (ends.stop_table != nullptr) {
    p.stop.stop_states[at] = stop_state(ends, to, p.total_rows, p.vocab);
  }
  const bool by_host = p.ended != nullptr && p.ended[row] != 0;
  const bool done = by_host || row_ends(ends, to, p.total_rows, p.vocab);
  if (done) p.length[slot] = step;
  return done;
}

}  // namespace decoding
