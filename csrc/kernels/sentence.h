// What each sentence of a call has of its own, in the device's memory.
#pragma once

#include <cstdint>

namespace decoding {

struct SentenceRules {
  uint64_t seed;         // of its random numbers
  int32_t random_first;  // the row word of its first row's random numbers; others follow
  int32_t max_new;       // tokens that a row may have
  int32_t forced_first;  // the only token of step 1; -1: any
  int32_t top_k;         // sampling; 0: off
  float temperature;
  float top_p;  // 1: off
};

}  // namespace decoding
