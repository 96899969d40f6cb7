// How the CPU reads a call's sentences, all that stands before the first step: the packed pass, and
// an encoder-decoder's prompt.
#pragma once

#include "engine/model/decoder.h"
#include "engine/model/encoder.h"
#include "engine/model/score.h"
#include "kernels/search/update.h"

namespace decoding {

// The inputs are in place. beams: of each sentence.
template <typename Stream, typename T, typename C>
void read(const Pass<Stream, T, C>& p, const Batch& batch, int beams) {
  const Workspace<T>& w = p.workspace;
  const int prefix = prefix_of(batch, p.spec);
  reset_cache_indirection(p.stream, {.cache_indirection = w.cache_indirection,
                                     .rows = p.limits.rows(),
                                     .beams = beams,
                                     .history = w.history,
                                     .prefix = prefix});
  if (p.spec.encoder) {
    encode(p, source_tokens(w.inputs.source, batch));
    read_prefix(p, batch.sentences, beams, prefix);
  } else if (const auto tokens = prompt_tokens(w.inputs, batch); tokens.count > 0) {
    read_prompt(p, tokens);
  }
}

// What score() reads, and what it asks for. The inputs are in place.
template <typename Stream, typename T, typename C>
void score(const Pass<Stream, T, C>& p, const Labelled& labelled) {
  const Inputs& inputs = p.workspace.inputs;
  if (p.spec.encoder) encode(p, source_tokens(inputs.source, labelled.source));
  read_labelled(p, labelled);
}

}  // namespace decoding
