// What score() is given: sentences, and for each of them tokens whose probabilities are asked for.
#pragma once

#include <cstdint>

#include "engine/model/inputs.h"
#include "engine/search/batch.h"
#include "kernels/rows/logprobs.h"

namespace decoding {

// Packed. Behind each token that the decoder reads stands the one that it should say next.
struct Labelled {
  Batch source;            // its source, sentences and stream count, nothing else
  const int32_t* ids;      // [offsets[sentences]], what the decoder reads
  const int32_t* labels;   // [offsets[sentences]], what it should say, kIgnored: whatever it says
  const int32_t* offsets;  // [sentences + 1]; a sentence may be empty
  int tokens() const { return offsets[source.sentences]; }
};

inline void check_labelled(const Labelled& given, const ModelSpec& spec, const Limits& limits) {
  const StackSpec& d = spec.decoder;
  const int sentences = given.source.sentences;
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
  check_labels(given.labels, given.tokens(), d.vocab);
  if (spec.encoder) check_source(given.source, *spec.encoder, limits);
}

// They must have been checked.
inline void fill_labelled(const Inputs& in, const Labelled& given, const ModelSpec& spec,
                          const Limits& limits) {
  if (spec.encoder) {
    in.source.fill(given.source);
    fill_pages(in, given.source.source_offsets, given.source.sentences, spec, limits);
  }
  std::copy_n(given.offsets, given.source.sentences + 1, in.forced_offsets);
  std::copy_n(given.ids, given.tokens(), in.forced_ids);
  std::copy_n(given.labels, given.tokens(), in.labels);
  const RotaryTables tables = rotary_tables(spec.decoder);
  for (int b = 0; b < given.source.sentences; ++b) {
    const int begin = given.offsets[b], length = given.offsets[b + 1] - begin;
    // With the last label, which is not read.
    for (int i = 0; i < length; ++i) in.forced_positions[begin + i] = tables.pack(i, length + 1);
  }
}

}  // namespace decoding
