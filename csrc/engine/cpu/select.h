// From logits to the next step on the CPU, put together from one kernel per part. On CUDA
// kernels/search/select.h does most of it in one launch.
//
//   pick     from the logits, or the scores that controls have made of them, to what may follow: a
//            token of each row, or candidates of each sentence
//   accept   takes them in, and gathers the rows of the next step (update.h)
//
// pick has one overload per strategy. pick_best does what pick does where nothing reads the logits
// (vocab_projection.h), which then are not written.
#pragma once

#include "engine/cpu/process.h"
#include "engine/cpu/vocab_projection.h"
#include "engine/search/update.h"
#include "kernels/search/gumbel_topk.h"
#include "kernels/search/sampling.h"
#include "kernels/search/topk.h"

namespace decoding {

inline AcceptStep accept_step(const Step& step, const uint8_t* ended) {
  const auto* contrastive = std::get_if<Contrastive>(&step.request.search);
  return {.now = &step.now,
          .ends = &step.ends,
          .rules = &step.beam_rules,
          .alpha = contrastive != nullptr ? &contrastive->alpha : nullptr,
          .candidates = step.scratch.candidates,
          .contenders = step.scratch.contenders,
          .ended = ended,
          .processed = step.request.processing.has_value(),
          .sentences = step.now.live_count,
          .beams = step.beams,
          .m = row_candidates(step.request, step.beams),
          .slots = step.slots,
          .vocab = step.vocab,
          .pad = step.rules().pad};
}

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
  merge(stream, w, accept_step(step, nullptr), search.draws ? step.scratch.keys : nullptr);
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

template <typename T, typename Stream>
void pick(Stream& stream, const Contrastive&, const float* choices, const Workspace<T>& w,
          const Step& step) {
  find_best(stream, choices, w, step, step.beams);
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
  if (!std::holds_alternative<Beam>(step.request.search)) return;
  merge(stream, w, accept_step(step, nullptr), nullptr);
}

// Takes in what has been picked. ended: see AcceptStep.
template <typename T, typename Stream>
void accept(Stream& stream, const Workspace<T>& w, const Step& step, const uint8_t* ended) {
  accept_picked(
      stream, step.request.search, w, accept_step(step, ended),
      step.request.processing ? process_params(w, step, kBefore | kMiddle) : ProcessParams<T>{});
}

}  // namespace decoding
