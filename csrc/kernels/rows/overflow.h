// What detect_overflow asks of the rows of a tensor:
//   largest        = max(largest, |x|)                 over all finite numbers
//   not_finite     = not_finite + 1                    for each row that holds NaN or infinity
//   first[place r] = tensor                            for each such row r, where it was 0
#pragma once

#include <cstdint>

#include "kernels/search/step.h"
#include "kernels/stream.h"

namespace decoding {

struct OverflowCount {
  float largest;
  int32_t not_finite;  // rows
};

template <typename T>
struct OverflowParams {
  const T* x;                      // [rows, cols]
  OverflowCount* count = nullptr;  // of the tensor
  int32_t* first;                  // by place: the first tensor that was not finite there; 0: none
  // The place of row r: places[r], -1 for rows that are not looked at; else that of a step's
  // sentence, active[r / beams].id; else r.
  const int32_t* places = nullptr;         // [rows], may be null
  const ActiveSentence* active = nullptr;  // [rows / beams], may be null
  const StepState* state = nullptr;        // with active: of so many sentences rows are looked at
  int rows, cols;
  int beams = 1;
  int32_t tensor = 0;   // its number, above 0
  bool renews = false;  // what was found at the places before is forgotten; each row has its own
};

template <typename T, cpu::Isa isa>
void detect_overflow(cpu::Stream<isa>&, const OverflowParams<T>&);
template <typename T>
void detect_overflow(cuda::Stream&, const OverflowParams<T>&);

// Of a row that is looked at.
template <typename T>
DECODING_EVERYWHERE int place_of(const OverflowParams<T>& p, int row) {
  if (p.places != nullptr) return p.places[row];
  return p.active != nullptr ? p.active[row / p.beams].id : row;
}

// Rows that may be looked at.
template <typename T>
DECODING_EVERYWHERE int rows_of(const OverflowParams<T>& p) {
  return p.active != nullptr ? p.state->active_count * p.beams : p.rows;
}

}  // namespace decoding
