// Where a search stands. Kernels read it through a pointer into the device's memory, so that one
// captured step can be replayed for all steps.
#pragma once

#include <cstdint>

namespace decoding {

struct StepState {
  int32_t number;      // g, of the step that runs, counted from 1
  int32_t position;    // in every row's history, of the token that the step reads
  int32_t live_count;  // sentences that go on
};

}  // namespace decoding
