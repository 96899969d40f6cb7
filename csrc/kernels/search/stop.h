// What ends a row, beside its length: an end token; a stop string, which an automaton over the
// tokens' texts finds across their bounds (Knuth, Morris, Pratt 1977); the host, which ends all
// rows when time is over.
#pragma once

#include <cstdint>

namespace decoding {

constexpr int kMatched = -1;  // in the automaton's table: the token completes a stop string

struct Ends {
  const int32_t* eos;       // [eos_count]
  const int32_t* stop_now;  // [1], 1: every row ends with this step
  int eos_count = 0;
  // where there are stop strings
  const int32_t* stop_table = nullptr;  // [states, V], the state behind a token
  const int32_t* stop_first = nullptr;  // [sentences], the state behind each prompt
  int32_t* stop_states = nullptr;  // [target, slots], the state behind each token of the trellis
};

}  // namespace decoding
