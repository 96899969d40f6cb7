// From logits, or the scores made of them, to what may follow on the CPU: a token of each row, or
// candidates of each sentence; put together from one kernel per part. On CUDA
// kernels/search/select.h does most of it in one launch.
#pragma once

#include "engine/cpu/vocab_projection.h"
#include "engine/search/update.h"
#include "kernels/search/logits.h"
#include "kernels/search/sampling.h"
#include "kernels/search/topk.h"

namespace decoding {

template <typename T, typename Stream>
void find_best(Stream& stream, const float* choices, const Workspace<T>& w, const StepView& step) {
  topk<float>(stream, {.logits = choices,
                       .group_max = w.group_max,
                       .best = w.best,
                       .queue = step.scratch.queue,
                       .maxima = step.scratch.maxima,
                       .rows = step.rows(),
                       .vocab = step.vocab,
                       .k = step.key.candidates});
}

template <typename T, typename Stream>
void sample_tokens(Stream& stream, const float* choices, const Workspace<T>& w,
                   const StepView& step) {
  sample<float>(stream, {.logits = choices,
                         .group_max = w.group_max,
                         .random_row = w.inputs.random_row,
                         .active = w.inputs.active,
                         .config = step.config,
                         .chosen = w.best,
                         .queue = step.scratch.queue,
                         .maxima = step.scratch.maxima,
                         .state = w.inputs.state,
                         .beams = step.key.beams,
                         .vocab = step.vocab});
}

// What the strategies choose from, and the maxima of its groups.
template <typename T, typename Stream>
const float* choices(Stream& stream, const Workspace<T>& w, const StepView& step) {
  const bool processed = step.key.processed, wants_lse = !processed || is_contrastive(*step.search);
  const float* from = processed ? w.scores : w.logits;
  scan_logits<float>(stream, {.logits = from,
                              .group_max = w.group_max,
                              .group_sum = w.group_sum,
                              .lse = wants_lse ? w.lse : nullptr,
                              .rows = step.rows(),
                              .vocab = step.vocab});
  if (!processed) {
    constrain_logits<T>(stream, {.logits = w.logits,
                                 .group_max = w.group_max,
                                 .group_sum = w.group_sum,
                                 .lse = w.lse,
                                 .config = step.config,
                                 .state = w.inputs.state,
                                 .active = w.inputs.active,
                                 .beams = step.key.beams,
                                 .vocab = step.vocab});
  }
  return from;
}

template <typename T, typename Stream>
void select(Stream& stream, const Workspace<T>& w, const StepView& step) {
  const float* from = choices(stream, w, step);
  if (step.key.samples) {
    sample_rows(stream, w, step);
  } else if (step.key.kind == SearchKind::sampling) {
    sample_tokens(stream, from, w, step);
  } else {
    find_best(stream, from, w, step);
  }
  if (merges_rows(*step.search)) merge(stream, w, step);
}

// As select(), where nothing reads the logits (vocab_projection.h), which then are not written.
template <typename T, typename Stream>
void select_best(Stream& stream, const Choice& choice, const Norm& norm, const Workspace<T>& w,
                 const StepView& step) {
  project_best(stream, choice, norm, w, step);
  if (merges_rows(*step.search)) merge(stream, w, step);
}

}  // namespace decoding
