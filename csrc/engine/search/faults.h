// What a search reports of a sentence that it could not go on with.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/check.h"

namespace decoding {

// fault: of item `item`, as beam.h and update.h say. tensor: the first that was not finite, ""
// where nobody looked.
inline std::string fault_text(int32_t fault, int32_t item, const std::string& tensor) {
  const std::string where =
      " for item " + std::to_string(item) + " at step " + std::to_string(std::abs(fault));
  if (fault < 0) return "every token is banned" + where + ": there is nothing to sample";
  const std::string first = tensor.empty() ? "" : ", first in the " + tensor;
  return "the model's logits are not finite (NaN or infinite)" + where + first;
}

// fault: [sentences], 0 or as above; sentence_ids: [sentences]. tensor_of(b): as above.
template <typename TensorOf>
void check_faults(const int32_t* fault, const int32_t* sentence_ids, int sentences,
                  TensorOf&& tensor_of) {
  for (int b = 0; b < sentences; ++b) {
    if (fault[b] != 0) throw Error(fault_text(fault[b], sentence_ids[b], tensor_of(b)));
  }
}

}  // namespace decoding
