// From selected candidates to the rows of the next step, alike on both devices: one overload of
// `update` for each strategy.
#pragma once

#include "engine/search/process.h"
#include "kernels/search/constrained.h"
#include "kernels/search/contrastive.h"
#include "kernels/search/diverse.h"
#include "kernels/search/gumbel_topk.h"
#include "kernels/search/update.h"

namespace decoding {

template <typename T>
StopMemory stop_memory(const Workspace<T>& w) {
  return {w.inputs.stop_now, w.inputs.stop_first, w.stop_states};
}

template <typename T>
BeamSearch beam_search(const Workspace<T>& w, const StepView& step) {
  return {.lse = w.lse,
          .active = w.inputs.active,
          .config = step.config,
          .state = w.inputs.state,
          .stop = stop_memory(w),
          .sums = w.inputs.sums,
          .tokens = w.tokens,
          .parents = w.parents,
          .cache_indirection = w.cache_indirection,
          .finished = w.finished,
          .finished_count = w.inputs.finished_count,
          .done = w.inputs.done,
          .fault = w.inputs.fault,
          .beams = step.key.beams,
          .vocab = step.vocab,
          .total_rows = step.total_rows,
          .history = w.history};
}

template <typename T, typename Stream>
void sample_rows(Stream& stream, const Workspace<T>& w, const StepView& step) {
  sample_candidates(stream, {.scores = w.scores,
                             .sums = w.inputs.sums,
                             .config = step.config,
                             .state = w.inputs.state,
                             .active = w.inputs.active,
                             .best = w.best,
                             .keys = step.scratch.keys,
                             .perturbed = step.scratch.perturbed,
                             .sentences = step.key.sentences,
                             .beams = step.key.beams,
                             .m = step.key.candidates,
                             .vocab = step.vocab,
                             .stride = w.logits_stride});
}

// Where rows compete, the end of selection: from the lists of a sentence's rows to its candidates.
template <typename T, typename Stream>
void merge(Stream& stream, const Workspace<T>& w, const StepView& step) {
  merge_beams(stream, {.best = w.best,
                       .keys = step.key.samples ? step.scratch.keys : nullptr,
                       .lse = step.key.processed ? nullptr : w.lse,
                       .sums = w.inputs.sums,
                       .active = w.inputs.active,
                       .config = step.config,
                       .state = w.inputs.state,
                       .candidates = step.scratch.candidates,
                       .queue = step.scratch.merge_queue,
                       .sentences = step.key.sentences,
                       .beams = step.key.beams,
                       .k = step.key.candidates,
                       .m = step.key.candidates,
                       .vocab = step.vocab});
}

// ended: which of what was selected the host ends: [sentences * K] rows, or [sentences, m]
// candidates (beam.h); null: none. fallback: see update.h.
template <typename T, typename Stream>
void update_tokens(Stream& stream, const Workspace<T>& w, const StepView& step,
                   const uint8_t* ended, int fallback) {
  update_rows(stream, {.chosen = w.best,
                       .lse = w.lse,
                       .active = w.inputs.active,
                       .config = step.config,
                       .stop = stop_memory(w),
                       .state = w.inputs.state,
                       .ended = ended,
                       .tokens = w.tokens,
                       .length = w.inputs.length,
                       .done = w.inputs.done,
                       .fault = w.inputs.fault,
                       .sentences = step.key.sentences,
                       .beams = step.key.beams,
                       .total_rows = step.total_rows,
                       .vocab = step.vocab,
                       .fallback = fallback});
}

template <typename T, typename Stream>
void update(Stream& stream, const Greedy&, const Workspace<T>& w, const StepView& step,
            const uint8_t* ended) {
  update_tokens(stream, w, step, ended, 0);  // everything banned: Hugging Face takes id 0
}

template <typename T, typename Stream>
void update(Stream& stream, const Sampling&, const Workspace<T>& w, const StepView& step,
            const uint8_t* ended) {
  update_tokens(stream, w, step, ended, -1);
}

template <typename T, typename Stream>
void update(Stream& stream, const Beam& beam, const Workspace<T>& w, const StepView& step,
            const uint8_t* ended) {
  beam_step(stream, {.search = beam_search(w, step),
                     .candidates = step.scratch.candidates,
                     .ended = ended,
                     .sentences = step.key.sentences,
                     .m = step.key.candidates,
                     .sampled = beam.samples});
}

// In the searches from here on the host ends no single row, as in transformers 4.
template <typename T, typename Stream>
void update(Stream& stream, const Diverse& diverse, const Workspace<T>& w, const StepView& step,
            const uint8_t*) {
  const int beams = step.key.beams, group = beams / diverse.groups;
  const bool processed = step.key.processed;
  const ProcessLogitsParams<T> processors = process_params(w, step, kPre | kMid);
  diverse_step<T>(stream, {.search = beam_search(w, step),
                           .best = w.best,
                           .lse = processed ? nullptr : w.lse,
                           .processors = processed ? &processors : nullptr,
                           .group_counts = w.inputs.group_counts,
                           .queue = step.scratch.merge_queue,
                           .sentences = step.key.sentences,
                           .k = step.key.candidates,
                           .m = step.key.candidates - (beams - group)});
}

template <typename T, typename Stream>
void update(Stream& stream, const Constrained&, const Workspace<T>& w, const StepView& step,
            const uint8_t*) {
  constrained_step(stream, {.search = beam_search(w, step),
                            .phrases = w.phrases.phrases,
                            .candidates = step.scratch.candidates,
                            .best = w.best,
                            .scores = w.scores,
                            .progress = w.phrases.progress,
                            .spare = w.phrases.spare,
                            .spare_count = w.phrases.spare_count,
                            .queue = w.phrases.queue,
                            .sentences = step.key.sentences,
                            .k = step.key.candidates,
                            .m = step.key.candidates,
                            .stride = w.logits_stride});
}

// Here a row's token is not yet known.
template <typename T, typename Stream>
void update(Stream& stream, const Contrastive&, const Workspace<T>& w, const StepView& step,
            const uint8_t*) {
  contrast_step(stream, {.search = beam_search(w, step),
                         .best = w.best,
                         .lse = w.lse,
                         .similarity = w.similarity,
                         .sentences = step.key.sentences});
}

// w.inputs.state becomes that of the next step.
template <typename T, typename Stream>
void update(Stream& stream, const Workspace<T>& w, const StepView& step, const uint8_t* ended) {
  std::visit([&](const auto& strategy) { update(stream, strategy, w, step, ended); }, *step.search);
  gather_active(stream, {.state = w.inputs.state,
                         .done = w.inputs.done,
                         .prompt_lengths = w.inputs.prompt_lengths,
                         .tokens = w.tokens,
                         .config = step.config,
                         .active = w.inputs.active,
                         .ids = w.inputs.ids,
                         .positions = w.inputs.positions,
                         .random_row = w.inputs.random_row,
                         .beams = step.key.beams,
                         .total_rows = step.total_rows,
                         .host_state = step.host_state});
}

}  // namespace decoding
