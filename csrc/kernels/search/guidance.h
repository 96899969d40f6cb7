// The rows of a step with guidance: each sentence has an unconditional one, which reads the same
// tokens after a prompt of its own and gives the scores that need no prompt (classifier-free
// guidance: Ho, Salimans 2022; for text Sanchez et al. 2023).
//
// Unconditional sentences are not searched: before a step they are listed after the sentences that
// they follow, and the history of their rows is made to run through the same beams. A captured step
// is made for more sentences than may be left: those places repeat the first sentence, which
// computes and writes the same once more.
#pragma once

#include <cstdint>

#include "kernels/search/step.h"
#include "kernels/stream.h"

namespace decoding {

struct UnconditionalRowsParams {
  const StepState* state;            // of the search
  const ActiveSentence* active;      // [sentences], those that are searched
  const int32_t* ids;                // [sentences * beams], token that each of their rows reads
  const int32_t* unconditional;      // [B], the sentence that follows each
  const int32_t* unconditional_ids;  // [B], the last token of its prompt
  const int32_t* prompt_lengths;     // [B], tokens before the one that the first step reads
  int32_t* cache_indirection;        // [2, total_rows, history], see decode.h
  StepState* all_state;              // [1]
  ActiveSentence* all_active;        // [2 * sentences], the unconditional behind the sentences
  int32_t* all_ids;                  // [2 * sentences * beams]
  int32_t* all_positions;            // [2 * sentences * beams], positions
  int sentences, beams;              // sentences: at least active_count
  int total_rows, history;
};

// The unconditional sentence that follows a sentence, at the same step.
DECODING_EVERYWHERE inline ActiveSentence unconditional_twin(const UnconditionalRowsParams& p,
                                                             const ActiveSentence& sentence) {
  return {p.unconditional[sentence.id], sentence.number, sentence.position};
}

template <cpu::Isa isa>
void unconditional_rows(cpu::Stream<isa>&, const UnconditionalRowsParams&);
void unconditional_rows(cuda::Stream&, const UnconditionalRowsParams&);

}  // namespace decoding
