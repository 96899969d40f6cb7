// What a search tells of a sentence that it could not go on with.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/check.h"

namespace decoding {

// fault: of item `item`, as beam.h and update.h say.
inline std::string fault_text(int32_t fault, int32_t item) {
  const std::string where =
      " for item " + std::to_string(item) + " at step " + std::to_string(std::abs(fault));
  return fault > 0 ? "the model's logits are not finite (NaN or infinite)" + where
                   : "every token is banned" + where + ": there is nothing to sample";
}

// fault: [sentences], 0 or as above; sentence_ids: [sentences].
inline void check_faults(const int32_t* fault, const int32_t* sentence_ids, int sentences) {
  for (int b = 0; b < sentences; ++b) {
    if (fault[b] != 0) throw Error(fault_text(fault[b], sentence_ids[b]));
  }
}

}  // namespace decoding
