// The rows of a step with guidance: each sentence has a shadow, which reads the same tokens behind
// a prompt of its own. What the model then says is what it would say anyway (classifier-free
// guidance: Ho, Salimans 2022; for text Sanchez et al. 2023).
//
// Shadows are sentences like others, but no search is theirs: before a step they are listed behind
// the sentences that they follow, and the history of their rows is made to run through the same
// beams. A captured step is made for more sentences than may be left: those places repeat the first
// sentence, which computes and writes the same once more.
#pragma once

#include <cstdint>

#include "kernels/search/step.h"
#include "kernels/stream.h"

namespace decoding {

struct ShadowRowsParams {
  const StepState* now;       // of the search
  const int32_t* live;        // [sentences], ids of the sentences that are searched
  const int32_t* ids;         // [sentences * beams], token that each of their rows reads
  const int32_t* shadow;      // [B], the sentence that follows each
  const int32_t* shadow_ids;  // [B], the last token of its prompt
  const int32_t* first;       // [B], position of the token that a row's first step reads
  int32_t* slots;             // [2, total_slots, history], see attention.h
  StepState* all_now;         // [1]
  int32_t* all_live;          // [2 * sentences], the shadows behind the sentences
  int32_t* all_ids;           // [2 * sentences * beams]
  int32_t* all_at;            // [2 * sentences * beams], positions
  int sentences, beams;       // sentences: at least live_count
  int total_slots, history;
};

template <cpu::Isa isa>
void shadow_rows(cpu::Stream<isa>&, const ShadowRowsParams&);
void shadow_rows(cuda::Stream&, const ShadowRowsParams&);

}  // namespace decoding
