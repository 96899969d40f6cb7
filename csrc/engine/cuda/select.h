// From logits, or the scores made of them, to what may follow on a GPU: the one launch of
// kernels/search/select.h, which updates rows too where that is all of a search; the rarer searches
// update them by kernels of their own (engine/search/update.h).
#pragma once

#include "engine/search/update.h"
#include "kernels/cuda/stream.h"
#include "kernels/search/select.h"

namespace decoding {

// choices: the logits, or the processed scores.
template <typename Choice, typename T>
void select(cuda::Stream& stream, Choice* choices, const Workspace<T>& w, const StepView& step) {
  select<Choice>(stream, {.kind = step.key.kind,
                          .part = step.key.part,
                          .logits = choices,
                          .config = step.config,
                          .prompt_lengths = w.inputs.prompt_lengths,
                          .state = w.inputs.state,
                          .host_state = step.host_state,
                          .stop = stop_memory(w),
                          .active = w.inputs.active,
                          .sums = w.inputs.sums,
                          .tokens = w.tokens,
                          .parents = w.parents,
                          .cache_indirection = w.cache_indirection,
                          .length = w.inputs.length,
                          .finished = w.finished,
                          .finished_count = w.inputs.finished_count,
                          .done = w.inputs.done,
                          .fault = w.inputs.fault,
                          .ids = w.inputs.ids,
                          .positions = w.inputs.positions,
                          .random_row = w.inputs.random_row,
                          .group_max = w.group_max,
                          .group_sum = w.group_sum,
                          .lse = w.lse,
                          .best = w.best,
                          .arrivals = step.scratch.arrivals,
                          .sentences = step.key.sentences,
                          .beams = step.key.beams,
                          .m = step.key.candidates,
                          .vocab = step.vocab,
                          .stride = w.logits_stride,
                          .total_rows = step.total_rows,
                          .history = w.history});
}

// In one launch where that is all of a step's search.
template <typename T>
void select(cuda::Stream& stream, const Workspace<T>& w, const StepView& step) {
  if (step.key.samples) {
    sample_rows(stream, w, step);
  } else if (step.key.processed) {
    select(stream, w.scores, w, step);
  } else {
    select(stream, w.logits, w, step);
  }
  if (step.key.part == SelectPart::candidates && merges_rows(*step.search)) merge(stream, w, step);
}

}  // namespace decoding
