// Whether a row ends with a token, by what stop.h lists: one text for both devices.
#pragma once

#include "core/philox.h"
#include "kernels/search/sentence.h"
#include "kernels/search/stop.h"

namespace decoding {

// Of a step's token: where it stands, and the slot of the row that it extends.
struct Extension {
  int step, sentence, parent, token;
};

// The stop automaton's state behind the token.
DECODING_EVERYWHERE inline int stop_state(const Ends& ends, const Extension& to, int slots,
                                          int vocab) {
  if (ends.stop_table == nullptr) return 0;
  const int before = to.step == 1 ? ends.stop_first[to.sentence]
                                  : ends.stop_states[int64_t{to.step - 2} * slots + to.parent];
  return ends.stop_table[int64_t{before} * vocab + to.token];
}

// Whether the token itself ends the row.
DECODING_EVERYWHERE inline bool token_ends(const Ends& ends, const Extension& to, int slots,
                                           int vocab) {
  for (int e = 0; e < ends.eos_count; ++e) {
    if (ends.eos[e] == to.token) return true;
  }
  return stop_state(ends, to, slots, vocab) == kMatched;
}

DECODING_EVERYWHERE inline bool is_last_step(const Ends& ends, const SentenceRules& sentence,
                                             int step) {
  return step == sentence.max_new || *ends.stop_now != 0;
}

DECODING_EVERYWHERE inline bool row_ends(const Ends& ends, const SentenceRules& sentence,
                                         const Extension& to, int slots, int vocab) {
  return is_last_step(ends, sentence, to.step) || token_ends(ends, to, slots, vocab);
}

}  // namespace decoding
