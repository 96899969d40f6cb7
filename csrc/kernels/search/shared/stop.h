// Whether a row ends with a token, by what stop.h lists: one text for both devices.
#pragma once

#include "core/philox.h"
#include "kernels/search/config.h"
#include "kernels/search/stop.h"

namespace decoding {

// What ends the rows of a sentence.
struct Ends {
  const int32_t* eos;         // [eos_count]
  const int32_t* stop_table;  // null: no stop strings
  const int32_t* stop_now;    // [1], of the sentence
  StopMemory stop;
  int eos_count, max_new;

  DECODING_EVERYWHERE Ends(const ConfigView& config, const SentenceConfig& sentence,
                           const StopMemory& stop, int id)
      : eos(config.words + sentence.eos.begin),
        stop_table(sentence.stop_table),
        stop_now(stop.stop_now + id),
        stop(stop),
        eos_count(sentence.eos.count),
        max_new(sentence.max_new) {}
  DECODING_EVERYWHERE Ends(const int32_t* eos, const int32_t* stop_table, const int32_t* stop_now,
                           const StopMemory& stop, int eos_count, int max_new)
      : eos(eos),
        stop_table(stop_table),
        stop_now(stop_now),
        stop(stop),
        eos_count(eos_count),
        max_new(max_new) {}
};

// Of a step's token: where it stands, and the slot of the row that it extends.
struct Extension {
  int step, sentence, parent, token;
};

// The stop automaton's state behind the token.
DECODING_EVERYWHERE inline int stop_state(const Ends& ends, const Extension& to, int total_rows,
                                          int vocab) {
  if (ends.stop_table == nullptr) return 0;
  const int before = to.step == 1
                         ? ends.stop.stop_first[to.sentence]
                         : ends.stop.stop_states[int64_t{to.step - 2} * total_rows + to.parent];
  return ends.stop_table[int64_t{before} * vocab + to.token];
}

// Whether the token itself ends the row.
DECODING_EVERYWHERE inline bool token_ends(const Ends& ends, const Extension& to, int total_rows,
                                           int vocab) {
  for (int e = 0; e < ends.eos_count; ++e) {
    if (ends.eos[e] == to.token) return true;
  }
  return stop_state(ends, to, total_rows, vocab) == kMatched;
}

DECODING_EVERYWHERE inline bool is_last_step(const Ends& ends, int step) {
  return step == ends.max_new || *ends.stop_now != 0;
}

DECODING_EVERYWHERE inline bool row_ends(const Ends& ends, const Extension& to, int total_rows,
                                         int vocab) {
  return is_last_step(ends, to.step) || token_ends(ends, to, total_rows, vocab);
}

}  // namespace decoding
