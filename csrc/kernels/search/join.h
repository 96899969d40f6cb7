// Sentences that join a search between two of its steps, and the rows that its next step reads.
#pragma once

#include <cstdint>

#include "kernels/search/beam.h"
#include "kernels/search/config.h"
#include "kernels/search/step.h"
#include "kernels/stream.h"

namespace decoding {

struct JoiningSentence {
  int32_t id;             // of none that is active
  int32_t prefix;         // positions of its rows' history that have been read for all of them
  int32_t prompt_length;  // tokens before the one that its first step reads
  int32_t first_token;    // that one
  int32_t stop_first;     // see stop.h
};

// Puts sentences behind the active ones, with all that a search keeps of them as it begins: the
// first beam of each group at 0, the others fill-ins (beam.h); every row's history in its own slot,
// but the prefix in that of its sentence's first row.
struct JoinParams {
  const JoiningSentence* joining;          // [count]
  StepState* state;                        // active_count grows
  ActiveSentence* active;                  // [B]
  int32_t* prompt_lengths;                 // [B]
  int32_t* first_tokens;                   // [B]
  int32_t *stop_first, *stop_now;          // [B]
  int32_t *finished_count, *done, *fault;  // [B]
  float* sums;                             // [total_rows]
  int32_t *length, *group_counts;          // [total_rows]
  int32_t* cache_indirection;              // [2, total_rows, history]
  int count, beams, groups, total_rows, history;
};

template <cpu::Isa isa>
void join_sentences(cpu::Stream<isa>&, const JoinParams&);
void join_sentences(cuda::Stream&, const JoinParams&);

// Fills in what the rows of active sentences read next, as gather_active does where they stay in
// place.
struct FillRowsParams {
  const StepState* state;
  const ActiveSentence* active;   // [sentences]
  const int32_t* prompt_lengths;  // [B]
  const int32_t* first_tokens;    // [B]
  const int32_t* tokens;          // [target, total_rows]
  ConfigView config;
  int32_t* ids;         // [sentences * beams]
  int32_t* positions;   // [sentences * beams]
  int32_t* random_row;  // [sentences * beams]
  int sentences;        // at least state->active_count
  int beams, total_rows;
};

template <cpu::Isa isa>
void fill_rows(cpu::Stream<isa>&, const FillRowsParams&);
void fill_rows(cuda::Stream&, const FillRowsParams&);

}  // namespace decoding
