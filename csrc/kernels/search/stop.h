// What ends a row, beside its length: an end token; a stop string, which an automaton over the
// tokens' texts finds across their bounds (Knuth, Morris, Pratt 1977); the host, which ends all
// rows when time is over.
//
// One table may hold several automata: a sentence stays in the one that its first state is of.
#pragma once

#include <cstdint>

namespace decoding {

constexpr int kMatched = -1;  // in the automaton's table: the token completes a stop string

// What a search keeps to tell; the ids and the table are in the config (config.h).
struct StopMemory {
  const int32_t* stop_now;    // [B], 1: every row ends with this step
  const int32_t* stop_first;  // [B], the automaton's state behind each prompt
  int32_t* stop_states;       // [target, total_rows], behind each token of the beam history
};

}  // namespace decoding
