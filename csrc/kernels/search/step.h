// Where a search stands. Kernels read it through pointers into the device's memory, so that one
// captured step can be replayed for all steps.
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace decoding {

// Of the whole call.
struct StepState {
  int32_t number;        // of the step that runs, counted from 1
  int32_t active_count;  // sentences that go on
};

// A sentence that goes on: rows i * beams to i * beams + beams - 1 of a step are those of
// active[i]. Each sentence is at a step of its own, so that they may begin and end apart.
struct ActiveSentence {
  int32_t id;        // under which all that is kept of it is found
  int32_t number;    // g, of its step that runs, counted from 1; 0: it reads a prompt
  int32_t position;  // in every row's history, of the token that the step reads

  // Of cache_indirection: which table the step reads, and which it writes for the next one.
  DECODING_EVERYWHERE int table() const { return number % 2; }
  DECODING_EVERYWHERE int next_table() const { return (number + 1) % 2; }
  // One step on.
  DECODING_EVERYWHERE ActiveSentence next() const { return {id, number + 1, position + 1}; }
};

}  // namespace decoding
