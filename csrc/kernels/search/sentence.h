// What each sentence of a call has of its own, in the device's memory.
#pragma once

#include <cstdint>

namespace decoding {

struct SentenceRules {
  uint64_t seed = 0;          // of its random numbers
  int32_t random_first = 0;   // the row word of its first row's random numbers; others follow
  int32_t max_new = 1;        // tokens that a row may have
  int32_t forced_first = -1;  // the only token of step 1; -1: any
  int32_t top_k = 0;          // sampling; 0: off
  float temperature = 1.0f;
  float top_p = 1.0f;  // 1: off
};

}  // namespace decoding
