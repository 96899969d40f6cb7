// What a session is given to work on, and the checks that make the rest of the engine trust it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/check.h"
#include "core/spec.h"
#include "engine/search/request.h"
#include "kernels/search/sentence.h"

namespace decoding {

// The sentences of a call, packed; the session copies what it needs.
struct Batch {
  const int32_t* source;          // [source_offsets[sentences]], null without an encoder
  const int32_t* source_at;       // [source_offsets[sentences]], where each token stood in its row:
                                  // masked ones leave gaps; null with source
  const int32_t* source_offsets;  // [sentences + 1], null with source
  const int32_t* prompt;          // [prompt_offsets[sentences]], the decoder rows to go on from
  const int32_t* prompt_offsets;  // [sentences + 1]
  const int32_t* items;           // [sentences], index of each in the caller's batch: it keys the
                                  // random numbers (update.h) and names faults
  const SentenceRules* rules;     // [sentences]
  const int32_t* stop_table;      // [states, V], see stop.h; null: no stop strings
  const int32_t* stop_first;      // [sentences], null with stop_table
  const int32_t* shortlist;       // [shortlisted], ascending, the only tokens that steps choose
                                  // from; null: all tokens are
  int sentences, beams;
  int shadows = 0;  // with guidance the last half, see guidance.h; else none
  int shortlisted = 0;
  void* stream = nullptr;  // CUDA: the caller's, on which all work is done
};

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

inline void check_rules(const Rules& rules, int vocab) {
  for (const auto* ids : {&rules.eos, &rules.banned, &rules.forced_last}) {
    check_ids("the rules' ids", ids->data(), static_cast<int>(ids->size()), vocab);
  }
  check_ids("pad", &rules.pad, 1, vocab);
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
  CHECK(batch.source_at != nullptr, "source_at must be given with a source");
  check_ids("source_at", batch.source_at, batch.source_offsets[batch.sentences],
            encoder.types * encoder.positions);
  const bool sees_distances =
      encoder.position_bias != PositionBias::none || !encoder.window.empty() || encoder.convolution;
  if (!sees_distances) return;
  for (int b = 0; b < batch.sentences; ++b) {
    for (int i = batch.source_offsets[b] + 1; i < batch.source_offsets[b + 1]; ++i) {
      CHECK(batch.source_at[i] == batch.source_at[i - 1] + 1, "sentence ", b,
            " has masked tokens between others: this model sees distances in the source, so only "
            "its ends may be masked");
    }
  }
}

// Throws where the batch or the search goes beyond the limits or the model's tables.
inline void check_fits(const Batch& batch, const Request& request, const ModelSpec& spec,
                       const Limits& limits) {
  const Rules& rules = request.rules;
  CHECK(batch.shadows == 0 || 2 * batch.shadows == batch.sentences, "shadows are half of ",
        batch.sentences, " sentences, got ", batch.shadows);
  CHECK(batch.sentences > 0 && batch.sentences <= limits.batch, "batch must be 1 to ", limits.batch,
        ", got ", batch.sentences);
  CHECK(batch.beams > 0 && batch.beams <= limits.beams, "beams must be 1 to ", limits.beams,
        ", got ", batch.beams);
  CHECK(rules.max_new > 0 && request.steps() <= limits.target, "target must be 1 to ",
        limits.target, ", got ", request.steps());
  if (is_contrastive(request.search)) {
    CHECK(limits.hidden > 0, "contrastive search needs hidden=1, it is 0");
    CHECK(!spec.decoder.pre_norm || spec.decoder.final_norm,
          "contrastive search needs a norm behind the last layer");
    CHECK(request.processing, "contrastive search needs controls");
  }
  if (const auto* constrained = std::get_if<Constrained>(&request.search)) {
    CHECK(constrained->phrases.words() <= static_cast<size_t>(limits.phrases), "phrases must be ",
          constrained->phrases.words(), " or more, it is ", limits.phrases);
    CHECK(request.processing, "constrained search needs controls");
  }
  if (const Beam* beam = beam_of(request.search)) {
    const int groups = groups_of(request.search);
    CHECK(groups > 0 && batch.beams % groups == 0, groups, " groups do not divide ", batch.beams,
          " beams");
    const int candidates = row_candidates(request, batch.beams);
    CHECK(candidates <= limits.candidates, "candidates must be ", candidates, " or more, they are ",
          limits.candidates);
    CHECK(beam->places(batch.beams) <= limits.places(), "finished must be ",
          beam->places(batch.beams), " or more, it is ", limits.places());
  }
  if (request.processing) {
    CHECK(limits.controls > 0 &&
              request.processing->words.size() <= static_cast<size_t>(limits.controls),
          "controls must be ", std::max<size_t>(1, request.processing->words.size()),
          " or more, it is ", limits.controls);
  }
  check_rules(rules, spec.decoder.vocab);
  check_shortlist(batch, spec.decoder.vocab, limits);
  for (int b = 0; b < batch.sentences; ++b) {
    const SentenceRules& own = batch.rules[b];
    CHECK(own.max_new > 0 && own.max_new <= rules.max_new, "max_new of sentence ", b,
          " must be 1 to ", rules.max_new, ", got ", own.max_new);
    CHECK(own.forced_first < spec.decoder.vocab, "forced_first of sentence ", b, " is not below ",
          spec.decoder.vocab);
    CHECK(own.temperature > 0.0f && own.top_p > 0.0f && own.top_k >= 0, "sentence ", b,
          " has a temperature, top_p or top_k out of range");
  }
  check_packed("prompt", batch.prompt, batch.prompt_offsets, batch.sentences, limits.prompt,
               spec.decoder.vocab, spec.decoder.positions - request.steps() + 1);
  if (!spec.encoder) return;
  check_source(batch, *spec.encoder, limits);
  const int length = batch.prompt_offsets[1];
  for (int b = 0; b < batch.sentences; ++b) {
    CHECK(batch.prompt_offsets[b + 1] - batch.prompt_offsets[b] == length,
          "prompts of an encoder-decoder must be equally long");
  }
}

}  // namespace decoding
