// The searches that are more than one launch on a GPU: what is picked is taken in by kernels of its
// own, one overload of accept for each strategy, as select_cpu.h has them.
#pragma once

#include "engine/select_cuda.h"
#include "kernels/constrained.h"
#include "kernels/contrast.h"
#include "kernels/diverse.h"
#include "kernels/draw.h"
#include "kernels/rows.h"

namespace decoding {

inline bool draws(const Search& search) {
  const auto* beam = std::get_if<Beam>(&search);
  return beam != nullptr && beam->draws;
}

// Whether the launch of kernels/select.h is the whole of a search's step.
inline bool is_fused(const Search& search, int beams) {
  if (const auto* beam = std::get_if<Beam>(&search)) {
    return !beam->draws && beam->normalization == LengthNormalization::power &&
           beam->places(beams) == beams && beam->diversity_rate == 0.0f;
  }
  return std::holds_alternative<Greedy>(search) || std::holds_alternative<Sampling>(search);
}

template <typename T>
BeamSearch beam_search(const Workspace<T>& w, const CudaSearch& search, const CudaStep& step) {
  return {.lse = w.lse,
          .live = w.inputs.live,
          .sentences = w.inputs.rules,
          .ends = search.rules.ends(),
          .rules = search.rules.beam(),
          .now = w.inputs.state,
          .sums = w.inputs.sums,
          .tokens = w.tokens,
          .parents = w.parents,
          .slots = w.slots,
          .finished = w.finished,
          .finished_count = w.inputs.finished_count,
          .done = w.inputs.done,
          .fault = w.inputs.fault,
          .beams = step.beams,
          .vocab = step.vocab,
          .total_slots = step.slots,
          .history = w.history};
}

// Where rows compete: from the lists of a sentence's rows to its candidates.
template <typename T>
void merge(cuda::Stream& stream, const Workspace<T>& w, const CudaSearch& search,
           const CudaStep& step) {
  merge_beams(stream, {.best = w.best,
                       .keys = step.draws ? search.keys : nullptr,
                       .lse = step.processed ? nullptr : w.lse,
                       .sums = w.inputs.sums,
                       .live = w.inputs.live,
                       .rules = search.rules.beam(),
                       .now = w.inputs.state,
                       .candidates = search.candidates,
                       .queue = search.contenders,
                       .sentences = step.sentences,
                       .beams = step.beams,
                       .k = step.candidates,
                       .m = step.candidates,
                       .vocab = step.vocab});
}

// From the logits or scores to what may follow; in one launch all that there is to do.
template <typename T>
void pick(cuda::Stream& stream, const Workspace<T>& w, const CudaSearch& search,
          const CudaStep& step) {
  if (step.draws) {
    draw_candidates(stream, {.scores = w.scores,
                             .sums = w.inputs.sums,
                             .own = w.inputs.rules,
                             .now = w.inputs.state,
                             .live = w.inputs.live,
                             .best = w.best,
                             .keys = search.keys,
                             .perturbed = search.perturbed,
                             .sentences = step.sentences,
                             .beams = step.beams,
                             .m = step.candidates,
                             .vocab = step.vocab,
                             .stride = w.logits_stride});
  } else if (step.processed) {
    select(stream, w.scores, w, search, step);
  } else {
    select(stream, w.logits, w, search, step);
  }
  const bool merges = std::holds_alternative<Beam>(*step.search) ||
                      std::holds_alternative<Constrained>(*step.search);
  if (step.part == SelectPart::pick && merges) merge(stream, w, search, step);
}

// fallback: see rows.h. ended: [live * beams], see rows.h.
template <typename T>
void accept_rows(cuda::Stream& stream, const Workspace<T>& w, const CudaSearch& search,
                 const CudaStep& step, const uint8_t* ended, int pad, int fallback) {
  accept_tokens(stream, {.chosen = w.best,
                         .lse = w.lse,
                         .live = w.inputs.live,
                         .sentence_rules = w.inputs.rules,
                         .ends = search.rules.ends(),
                         .now = w.inputs.state,
                         .ended = ended,
                         .tokens = w.tokens,
                         .length = w.inputs.length,
                         .done = w.inputs.done,
                         .fault = w.inputs.fault,
                         .sentences = step.sentences,
                         .beams = step.beams,
                         .slots = step.slots,
                         .vocab = step.vocab,
                         .pad = pad,
                         .fallback = fallback});
}

template <typename T>
void accept(cuda::Stream& stream, const Greedy&, const Workspace<T>& w, const CudaSearch& search,
            const CudaStep& step, const uint8_t* ended) {
  accept_rows(stream, w, search, step, ended, step.pad, 0);  // everything banned: id 0
}

template <typename T>
void accept(cuda::Stream& stream, const Sampling&, const Workspace<T>& w, const CudaSearch& search,
            const CudaStep& step, const uint8_t* ended) {
  accept_rows(stream, w, search, step, ended, step.pad, -1);
}

// ended: [live, m], see beam.h.
template <typename T>
void accept(cuda::Stream& stream, const Beam& beam, const Workspace<T>& w, const CudaSearch& search,
            const CudaStep& step, const uint8_t* ended) {
  beam_step(stream, {.search = beam_search(w, search, step),
                     .candidates = search.candidates,
                     .ended = ended,
                     .sentences = step.sentences,
                     .m = step.candidates,
                     .drawn = beam.draws});
}

template <typename T>
void accept(cuda::Stream& stream, const Diverse& diverse, const Workspace<T>& w,
            const CudaSearch& search, const CudaStep& step, const uint8_t*) {
  const ProcessParams<T> processors = process_params(w, search, step, kBefore | kMiddle);
  const int group = step.beams / diverse.groups;
  diverse_step<T>(stream, {.search = beam_search(w, search, step),
                           .best = w.best,
                           .lse = step.processed ? nullptr : w.lse,
                           .processors = step.processed ? &processors : nullptr,
                           .group_counts = w.inputs.group_counts,
                           .queue = search.contenders,
                           .sentences = step.sentences,
                           .k = step.candidates,
                           .m = step.candidates - (step.beams - group)});
}

template <typename T>
void accept(cuda::Stream& stream, const Contrastive&, const Workspace<T>& w,
            const CudaSearch& search, const CudaStep& step, const uint8_t*) {
  contrast_step(stream, {.search = beam_search(w, search, step),
                         .best = w.best,
                         .lse = w.lse,
                         .likeness = w.likeness,
                         .alpha = w.alpha,
                         .sentences = step.sentences});
}

template <typename T>
void accept(cuda::Stream& stream, const Constrained&, const Workspace<T>& w,
            const CudaSearch& search, const CudaStep& step, const uint8_t*) {
  constrained_step(stream, {.search = beam_search(w, search, step),
                            .phrases = w.phrases.phrases,
                            .candidates = search.candidates,
                            .best = w.best,
                            .scores = w.scores,
                            .progress = w.phrases.progress,
                            .spare = w.phrases.spare,
                            .spare_count = w.phrases.spare_count,
                            .queue = w.phrases.queue,
                            .sentences = step.sentences,
                            .k = step.candidates,
                            .m = step.candidates,
                            .stride = w.logits_stride});
}

// Takes in what has been picked, but for what the host ends: [live * K] rows or [live, m]
// candidates, null: nothing. w.inputs.state becomes that of the next step.
template <typename T>
void accept(cuda::Stream& stream, const Workspace<T>& w, const CudaSearch& search,
            const CudaStep& step, const uint8_t* ended) {
  std::visit([&](const auto& strategy) { accept(stream, strategy, w, search, step, ended); },
             *step.search);
  gather_live(stream, {.now = w.inputs.state,
                       .done = w.inputs.done,
                       .first = w.inputs.first,
                       .tokens = w.tokens,
                       .sentence_rules = w.inputs.rules,
                       .live = w.inputs.live,
                       .ids = w.inputs.ids,
                       .at = w.inputs.at,
                       .random_row = w.inputs.random_row,
                       .beams = step.beams,
                       .slots = step.slots,
                       .seen = step.seen});
}

}  // namespace decoding
