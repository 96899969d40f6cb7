// From logits to the next step on the CPU, put together from one kernel per part. On CUDA
// kernels/select.h does most of it in one launch.
//
//   pick     from the logits, or the scores that controls have made of them, to what may follow: a
//            token of each row, or candidates of each sentence
//   accept   takes them in, and gathers the rows of the next step
//
// One overload of each per strategy. pick_best does what pick does where nothing reads the logits
// (project_cpu.h), which then are not written.
#pragma once

#include "engine/project_cpu.h"
#include "engine/scores_cpu.h"
#include "kernels/constrained.h"
#include "kernels/contrast.h"
#include "kernels/diverse.h"
#include "kernels/draw.h"
#include "kernels/rows.h"
#include "kernels/sample.h"
#include "kernels/topk.h"

namespace decoding {

template <typename T, typename Stream>
void find_best(Stream& stream, const float* choices, const Workspace<T>& w, const Step& step,
               int k) {
  topk<float>(stream, {.logits = choices,
                       .group_max = w.group_max,
                       .best = w.best,
                       .queue = step.scratch.queue,
                       .maxima = step.scratch.maxima,
                       .rows = step.rows(),
                       .vocab = step.vocab,
                       .k = k});
}

template <typename T, typename Stream>
void pick(Stream& stream, const Greedy&, const float* choices, const Workspace<T>& w,
          const Step& step) {
  find_best(stream, choices, w, step, 1);
}

template <typename T, typename Stream>
void pick(Stream& stream, const Sampling&, const float* choices, const Workspace<T>& w,
          const Step& step) {
  sample<float>(stream, {.logits = choices,
                         .group_max = w.group_max,
                         .random_row = w.inputs.random_row,
                         .live = w.inputs.live,
                         .sentences = w.inputs.rules,
                         .chosen = w.best,
                         .queue = step.scratch.queue,
                         .maxima = step.scratch.maxima,
                         .live_count = step.now.live_count,
                         .beams = step.beams,
                         .vocab = step.vocab,
                         .step = step.now.number,
                         .warped = step.request.processing.has_value()});
}

// The candidates of each sentence, from those of its rows.
template <typename T, typename Stream>
void merge(Stream& stream, const Beam& search, const Workspace<T>& w, const Step& step) {
  const int m = row_candidates(step.request, step.beams);
  const BeamRules rules = beam_rules(step.request, step.beams);
  merge_beams(stream, {.best = w.best,
                       .keys = search.draws ? step.scratch.keys : nullptr,
                       .lse = step.request.processing ? nullptr : w.lse,
                       .sums = w.inputs.sums,
                       .live = w.inputs.live,
                       .rules = &rules,
                       .now = &step.now,
                       .candidates = step.scratch.candidates,
                       .queue = step.scratch.contenders,
                       .sentences = step.now.live_count,
                       .beams = step.beams,
                       .k = m,
                       .m = m,
                       .vocab = step.vocab});
}

template <typename T, typename Stream>
void pick(Stream& stream, const Beam& search, const float* choices, const Workspace<T>& w,
          const Step& step) {
  const int m = row_candidates(step.request, step.beams);
  if (search.draws) {
    draw_candidates(stream, {.scores = choices,
                             .sums = w.inputs.sums,
                             .own = w.inputs.rules,
                             .now = w.inputs.state,
                             .live = w.inputs.live,
                             .best = w.best,
                             .keys = step.scratch.keys,
                             .sentences = step.now.live_count,
                             .beams = step.beams,
                             .m = m,
                             .vocab = step.vocab,
                             .stride = w.logits_stride});
  } else {
    find_best(stream, choices, w, step, m);
  }
  merge(stream, search, w, step);
}

// fallback: see rows.h. ended: [live * beams], see rows.h.
template <typename T, typename Stream>
void accept_rows(Stream& stream, const Workspace<T>& w, const Step& step, const uint8_t* ended,
                 int fallback) {
  accept_tokens(stream, {.chosen = w.best,
                         .lse = w.lse,
                         .live = w.inputs.live,
                         .sentence_rules = w.inputs.rules,
                         .ends = &step.ends,
                         .now = &step.now,
                         .ended = ended,
                         .tokens = w.tokens,
                         .length = w.inputs.length,
                         .done = w.inputs.done,
                         .fault = w.inputs.fault,
                         .sentences = step.now.live_count,
                         .beams = step.beams,
                         .slots = step.slots,
                         .vocab = step.vocab,
                         .pad = step.rules().pad,
                         .fallback = fallback});
}

template <typename T, typename Stream>
void accept(Stream& stream, const Greedy&, const Workspace<T>& w, const Step& step,
            const uint8_t* ended) {
  accept_rows(stream, w, step, ended, 0);  // everything banned: Hugging Face takes id 0
}

template <typename T, typename Stream>
void accept(Stream& stream, const Sampling&, const Workspace<T>& w, const Step& step,
            const uint8_t* ended) {
  accept_rows(stream, w, step, ended, -1);
}

template <typename T>
BeamSearch beam_search(const BeamRules& rules, const Workspace<T>& w, const Step& step) {
  return {.lse = w.lse,
          .live = w.inputs.live,
          .sentences = w.inputs.rules,
          .ends = &step.ends,
          .rules = &rules,
          .now = &step.now,
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

// ended: [live, m], see beam.h.
template <typename T, typename Stream>
void accept(Stream& stream, const Beam& search, const Workspace<T>& w, const Step& step,
            const uint8_t* ended) {
  const BeamRules rules = beam_rules(step.request, step.beams);
  beam_step(stream, {.search = beam_search(rules, w, step),
                     .candidates = step.scratch.candidates,
                     .ended = ended,
                     .sentences = step.now.live_count,
                     .m = row_candidates(step.request, step.beams),
                     .drawn = search.draws});
}

template <typename T, typename Stream>
void pick(Stream& stream, const Diverse&, const float* choices, const Workspace<T>& w,
          const Step& step) {
  find_best(stream, choices, w, step, row_candidates(step.request, step.beams));
}

template <typename T, typename Stream>
void pick(Stream& stream, const Constrained& search, const float* choices, const Workspace<T>& w,
          const Step& step) {
  pick(stream, search.beam, choices, w, step);
}

// The host ends no single row here.
template <typename T, typename Stream>
void accept(Stream& stream, const Constrained&, const Workspace<T>& w, const Step& step,
            const uint8_t*) {
  const BeamRules rules = beam_rules(step.request, step.beams);
  const int m = row_candidates(step.request, step.beams);
  constrained_step(stream, {.search = beam_search(rules, w, step),
                            .phrases = w.phrases.phrases,
                            .candidates = step.scratch.candidates,
                            .best = w.best,
                            .scores = w.scores,
                            .progress = w.phrases.progress,
                            .spare = w.phrases.spare,
                            .spare_count = w.phrases.spare_count,
                            .queue = w.phrases.queue,
                            .sentences = step.now.live_count,
                            .k = m,
                            .m = m,
                            .stride = w.logits_stride});
}

// The host ends no single row here, as in transformers 4.
template <typename T, typename Stream>
void accept(Stream& stream, const Diverse& search, const Workspace<T>& w, const Step& step,
            const uint8_t*) {
  const bool processed = step.request.processing.has_value();
  const ProcessParams<T> processors =
      processed ? process_params(w, step, kBefore | kMiddle) : ProcessParams<T>{};
  const BeamRules rules = beam_rules(step.request, step.beams);
  diverse_step<T>(stream, {.search = beam_search(rules, w, step),
                           .best = w.best,
                           .lse = processed ? nullptr : w.lse,
                           .processors = processed ? &processors : nullptr,
                           .group_counts = w.inputs.group_counts,
                           .queue = step.scratch.contenders,
                           .sentences = step.now.live_count,
                           .k = row_candidates(step.request, step.beams),
                           .m = beam_candidates(step.rules(), step.beams / search.groups)});
}

template <typename T, typename Stream>
void pick(Stream& stream, const Contrastive&, const float* choices, const Workspace<T>& w,
          const Step& step) {
  find_best(stream, choices, w, step, step.beams);
}

// The host ends no row here: its token is not yet known.
template <typename T, typename Stream>
void accept(Stream& stream, const Contrastive& search, const Workspace<T>& w, const Step& step,
            const uint8_t*) {
  const BeamRules rules = beam_rules(step.request, step.beams);
  contrast_step(stream, {.search = beam_search(rules, w, step),
                         .best = w.best,
                         .lse = w.lse,
                         .likeness = w.likeness,
                         .alpha = &search.alpha,
                         .sentences = step.now.live_count});
}

template <typename T, typename Stream>
void pick(Stream& stream, const Workspace<T>& w, const Step& step) {
  const float* from = choices(stream, w, step);
  std::visit([&](const auto& strategy) { pick(stream, strategy, from, w, step); },
             step.request.search);
}

template <typename T, typename Stream>
void pick_best(Stream& stream, const Choice& choice, const Norm& norm, const Workspace<T>& w,
               const Step& step) {
  project_best(stream, choice, norm, w, step, row_candidates(step.request, step.beams));
  if (const auto* beam = std::get_if<Beam>(&step.request.search)) merge(stream, *beam, w, step);
}

// ended: which of what was picked the host ends; null: none. w.inputs.state becomes that of the
// next step.
template <typename T, typename Stream>
void accept(Stream& stream, const Workspace<T>& w, const Step& step, const uint8_t* ended) {
  std::visit([&](const auto& strategy) { accept(stream, strategy, w, step, ended); },
             step.request.search);
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
                       .slots = step.slots});
}

}  // namespace decoding
