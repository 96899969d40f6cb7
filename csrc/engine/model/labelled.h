// What score() is given: sentences, and for each of them tokens whose probabilities are asked for,
// or how much they attend to the source.
#pragma once

#include <cstdint>

#include "engine/model/inputs.h"
#include "engine/search/batch.h"
#include "kernels/rows/logprobs.h"

namespace decoding {

// Packed. Behind each token that the decoder reads stands the one that it should say next.
struct Labelled {
  Batch source;            // the sources and their number, and the stream, nothing else
  const int32_t* sources;  // [sentences], the source of each, at most its own number: the second
                           // sentence has the first or the second source; null without an encoder
  const int32_t* ids;      // [offsets[sentences]], what the decoder reads
  const int32_t* labels;   // [offsets[sentences]], what it should say, kIgnored: whatever it says;
                           // null: no probabilities are asked for
  const int32_t* offsets;  // [sentences + 1]; a sentence may be empty
  int sentences;
  int tokens() const { return offsets[sentences]; }
};

inline void check_labelled(const Labelled& given, const ModelSpec& spec, const Limits& limits) {
  const StackSpec& d = spec.decoder;
  const int sentences = given.sentences;
  CHECK(sentences > 0 && sentences <= limits.batch, "batch must be 1 to ", limits.batch, ", got ",
        sentences);
  CHECK(given.offsets[0] == 0, "offsets must start at 0, got ", given.offsets[0]);
  const int most = std::min(limits.labels, d.positions);
  for (int b = 0; b < sentences; ++b) {
    const int length = given.offsets[b + 1] - given.offsets[b];
    CHECK(length >= 0 && length <= most, "labels must be 0 to ", most, ", sentence ", b, " has ",
          length);
  }
  check_ids("ids", given.ids, given.tokens(), d.vocab);
  if (given.labels != nullptr) check_labels(given.labels, given.tokens(), d.vocab);
  if (!spec.encoder) return;
  check_source(given.source, *spec.encoder, limits);
  CHECK(given.sources != nullptr, "sources must be given");
  CHECK(given.source.sentences <= sentences, "there are more sources than sentences");
  for (int b = 0; b < sentences; ++b) {
    const int last = std::min(b, given.source.sentences - 1);
    CHECK(given.sources[b] >= 0 && given.sources[b] <= last, "the source of sentence ", b,
          " must be 0 to ", last, ", got ", given.sources[b]);
  }
}

// attentions: where they are asked for, else null.
inline void check_kept(const Inputs& in, const float* attentions) {
  CHECK(attentions == nullptr || in.forced_active != nullptr,
        "attentions of labels need limits with attentions=1");
}

// From the pages of each source to those of each sentence, from the last one: no source comes after
// its sentence.
inline void share_pages(const Inputs& in, const Labelled& given, int pages) {
  for (int b = given.sentences - 1; b > 0; --b) {
    std::copy_n(in.shared_pages + given.sources[b] * pages, pages, in.shared_pages + b * pages);
    in.shared_lengths[b] = in.shared_lengths[given.sources[b]];
  }
}

// They must have been checked.
inline void fill_labelled(const Inputs& in, const Labelled& given, const ModelSpec& spec,
                          const Limits& limits) {
  if (spec.encoder) {
    in.source.fill(given.source);
    fill_pages(in, given.source.source_offsets, given.source.sentences, spec, limits);
    share_pages(in, given, shared_pages_of(spec, limits));
  }
  std::copy_n(given.offsets, given.sentences + 1, in.forced_offsets);
  std::copy_n(given.ids, given.tokens(), in.forced_ids);
  if (given.labels != nullptr) std::copy_n(given.labels, given.tokens(), in.labels);
  const RotaryTables tables = rotary_tables(spec.decoder);
  for (int b = 0; b < given.sentences; ++b) {
    const int begin = given.offsets[b], length = given.offsets[b + 1] - begin;
    // With the last label, which is not read.
    for (int i = 0; i < length; ++i) in.forced_positions[begin + i] = tables.pack(i, length + 1);
    // Each token is a sentence's only row in a step of its own.
    for (int i = 0; in.forced_active != nullptr && i < length; ++i) {
      in.forced_active[begin + i] = {b, i + 1, i};
    }
  }
  *in.state = {1, given.tokens()};
}

}  // namespace decoding
