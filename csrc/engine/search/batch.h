// What a session is given to work on, and the checks that make the rest of the engine trust it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/check.h"
#include "core/spec.h"
#include "engine/search/request.h"
#include "kernels/attention/rotary.h"

namespace decoding {

// The texts of a call, packed; the session copies what it needs. With guidance there are twice as
// many as sentences of the request, the last half as guidance.h says.
struct Batch {
  const int32_t* source;            // [source_offsets[sentences]], null without an encoder
  const int32_t* source_positions;  // [source_offsets[sentences]], where each token stood in its
                                    // row: masked ones leave gaps; null with source
  const int32_t* source_offsets;    // [sentences + 1], null with source
  const int32_t* prompt;            // [prompt_offsets[sentences]], the decoder rows to go on from
  const int32_t* prompt_offsets;    // [sentences + 1]
  const int32_t* sentence_ids;      // [sentences], index of each in the caller's batch, which
                                    // names faults
  const int32_t* shortlist;         // [shortlisted], ascending, the only tokens that steps choose
                                    // from; null: all tokens are
  int sentences;
  int shortlisted = 0;
  void* stream = nullptr;  // CUDA: the caller's, on which all work is done
};

// Tokens; 0 without an encoder.
inline int longest_source(const Batch& batch) {
  int longest = 0;
  for (int b = 0; batch.source_offsets != nullptr && b < batch.sentences; ++b) {
    longest = std::max(longest, batch.source_offsets[b + 1] - batch.source_offsets[b]);
  }
  return longest;
}

inline void check_ids(const char* name, const int32_t* ids, int count, int size) {
  for (int i = 0; i < count; ++i) {
    CHECK(ids[i] >= 0 && ids[i] < size, name, " must be 0 to ", size - 1, ", got ", ids[i]);
  }
}

// Between 1 and min(limit, positions) tokens for each sentence, each within the vocabulary.
inline void check_packed(const char* name, const int32_t* ids, const int32_t* offsets,
                         int sentences, int limit, int vocab, int positions) {
  CHECK(ids != nullptr && offsets != nullptr, name, " must be given");
  CHECK(offsets[0] == 0, name, " offsets must start at 0, got ", offsets[0]);
  for (int b = 0; b < sentences; ++b) {
    const int length = offsets[b + 1] - offsets[b];
    CHECK(length > 0 && length <= limit, name, " must have 1 to ", limit, " tokens, sentence ", b,
          " has ", length);
    CHECK(length <= positions, name, " of sentence ", b, " has ", length,
          " tokens, the model's positions leave room for ", positions);
  }
  check_ids(name, ids, offsets[sentences], vocab);
}

inline void check_shortlist(const Batch& batch, int vocab, const Limits& limits) {
  if (batch.shortlist == nullptr) return;
  CHECK(batch.shortlisted > 0 && batch.shortlisted <= limits.shortlist, "shortlist must have 1 to ",
        limits.shortlist, " tokens, got ", batch.shortlisted);
  check_ids("shortlist", batch.shortlist, batch.shortlisted, vocab);
  for (int i = 1; i < batch.shortlisted; ++i) {
    CHECK(batch.shortlist[i - 1] < batch.shortlist[i], "shortlist must ascend, got ",
          batch.shortlist[i], " behind ", batch.shortlist[i - 1]);
  }
}

inline void check_source(const Batch& batch, const StackSpec& encoder, const Limits& limits) {
  check_packed("source", batch.source, batch.source_offsets, batch.sentences, limits.source,
               encoder.vocab, encoder.positions);
  CHECK(batch.source_positions != nullptr, "source_at must be given with a source");
  check_ids("source_at", batch.source_positions, batch.source_offsets[batch.sentences],
            encoder.types * encoder.positions);
  const bool sees_distances =
      encoder.position_bias != PositionBias::none || !encoder.window.empty() || encoder.convolution;
  if (!sees_distances) return;
  for (int b = 0; b < batch.sentences; ++b) {
    for (int i = batch.source_offsets[b] + 1; i < batch.source_offsets[b + 1]; ++i) {
      CHECK(batch.source_positions[i] == batch.source_positions[i - 1] + 1, "sentence ", b,
            " has masked tokens between others: this model sees distances in the source, so only "
            "its ends may be masked");
    }
  }
}

inline RotaryTables rotary_tables(const StackSpec& spec) {
  if (!spec.rotary) return {};
  return {spec.rotary->tables, spec.rotary->original, spec.positions};
}

// Throws where the batch or the request goes beyond the limits or the model's tables.
void check_fits(const Batch& batch, const Request& request, const ModelSpec& spec,
                const Limits& limits);

}  // namespace decoding
