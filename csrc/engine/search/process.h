// From logits to the scores that a request's processors and filters make of them.
#pragma once

#include "engine/model/workspace.h"
#include "engine/search/step.h"
#include "kernels/search/filters.h"
#include "kernels/search/processors.h"

namespace decoding {

template <typename T>
ProcessLogitsParams<T> process_params(const Workspace<T>& w, const StepView& step, int stages) {
  const bool guided = step.key.guided;
  return {.logits = w.logits,
          .unconditional = guided ? w.logits + int64_t{step.rows()} * w.logits_stride : nullptr,
          .scores = w.scores,
          .lse = w.lse,
          .unconditional_lse = guided ? w.lse + step.rows() : nullptr,
          .config = step.config,
          .state = w.inputs.state,
          .active = w.inputs.active,
          .ids = w.inputs.ids,
          .tokens = w.tokens,
          .cache_indirection = w.cache_indirection,
          .marks = step.scratch.marks,
          .sentences = step.key.sentences,
          .beams = step.key.beams,
          .vocab = step.vocab,
          .stride = w.logits_stride,
          .score_stride = w.logits_stride,
          .total_rows = step.total_rows,
          .history = w.history,
          .stages = stages,
          .competing = step.competes()};
}

// stages: of processors.h; filters come before the last.
template <typename T, typename Stream>
void process_scores(Stream& stream, const Workspace<T>& w, const StepView& step, int stages) {
  if (const int first = stages & (kPre | kMid)) {
    process_logits<T>(stream, process_params(w, step, first));
  }
  if ((stages & kPost) == 0) return;
  if (step.key.filtered) {
    filter_scores(stream, {.scores = w.scores,
                           .config = step.config,
                           .state = w.inputs.state,
                           .active = w.inputs.active,
                           .group_max = w.group_max,
                           .queue = step.scratch.queue,
                           .maxima = step.scratch.maxima,
                           .sentences = step.key.sentences,
                           .beams = step.key.beams,
                           .vocab = step.vocab,
                           .stride = w.logits_stride});
  }
  if (step.key.renormalized) process_logits<T>(stream, process_params(w, step, kPost));
}

}  // namespace decoding
