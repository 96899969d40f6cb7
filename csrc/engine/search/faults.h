// What a search tells of a sentence that it could not go on with.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/check.h"

namespace decoding {

// fault: [sentences], 0 or as beam.h and update.h say; sentence_ids: [sentences].
inline void check_faults(const int32_t* fault, const int32_t* sentence_ids, int sentences) {
  for (int b = 0; b < sentences; ++b) {
    if (fault[b] == 0) continue;
    const std::string where = " for item " + std::to_string(sentence_ids[b]) + " at step " +
                              std::to_string(std::abs(fault[b]));
    if (fault[b] > 0) {
      throw Error("the model's logits are not finite (NaN or infinite)" + where);
    }
    throw Error("every token is banned" + where + ": there is nothing to sample");
  }
}

}  // namespace decoding
