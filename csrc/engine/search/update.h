// Taking in what a step has picked, alike on both devices: one overload of accept for each
// strategy.
#pragma once

#include "engine/model/workspace.h"
#include "engine/search/request.h"
#include "kernels/search/constrained.h"
#include "kernels/search/contrastive.h"
#include "kernels/search/diverse.h"
#include "kernels/search/update.h"

namespace decoding {

// What that needs beside the workspace.
struct AcceptStep {
  const StepState* now;       // [1], stays as it is until all is taken in, if not on CUDA
  const Ends* ends;           // [1]
  const BeamRules* rules;     // [1], where rows compete
  const float* alpha;         // [1], of a contrastive search
  Candidate* candidates;      // [sentences, m], of those that compete
  Contender* contenders;      // [sentences, K * m], scratch
  const uint8_t* ended;       // which of what was picked the host ends: [sentences * K] rows, or
                              // [sentences, m] candidates (beam.h); null: none
  bool processed;             // whether candidates are of scores, which lse is not taken off
  int sentences, beams, m;    // m: candidates of a row
  int slots, vocab;           // slots: of the plan
  int pad;                    // what an ended row reads while its sentence goes on
  StepState* seen = nullptr;  // CUDA: in the host's memory, see update.h
};

template <typename T>
BeamSearch beam_search(const Workspace<T>& w, const AcceptStep& step) {
  return {.lse = w.lse,
          .live = w.inputs.live,
          .sentences = w.inputs.rules,
          .ends = step.ends,
          .rules = step.rules,
          .now = step.now,
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

// Where rows compete, the end of picking: from the lists of a sentence's rows to its candidates.
// keys: of candidates that were drawn, else null.
template <typename T, typename Stream>
void merge(Stream& stream, const Workspace<T>& w, const AcceptStep& step, const float* keys) {
  merge_beams(stream, {.best = w.best,
                       .keys = keys,
                       .lse = step.processed ? nullptr : w.lse,
                       .sums = w.inputs.sums,
                       .live = w.inputs.live,
                       .rules = step.rules,
                       .now = step.now,
                       .candidates = step.candidates,
                       .queue = step.contenders,
                       .sentences = step.sentences,
                       .beams = step.beams,
                       .k = step.m,
                       .m = step.m,
                       .vocab = step.vocab});
}

// fallback: see update.h.
template <typename T, typename Stream>
void accept_rows(Stream& stream, const Workspace<T>& w, const AcceptStep& step, int fallback) {
  accept_tokens(stream, {.chosen = w.best,
                         .lse = w.lse,
                         .live = w.inputs.live,
                         .sentence_rules = w.inputs.rules,
                         .ends = step.ends,
                         .now = step.now,
                         .ended = step.ended,
                         .tokens = w.tokens,
                         .length = w.inputs.length,
                         .done = w.inputs.done,
                         .fault = w.inputs.fault,
                         .sentences = step.sentences,
                         .beams = step.beams,
                         .slots = step.slots,
                         .vocab = step.vocab,
                         .pad = step.pad,
                         .fallback = fallback});
}

template <typename T, typename Stream>
void accept(Stream& stream, const Greedy&, const Workspace<T>& w, const AcceptStep& step,
            const ProcessParams<T>&) {
  accept_rows(stream, w, step, 0);  // everything banned: Hugging Face takes id 0
}

template <typename T, typename Stream>
void accept(Stream& stream, const Sampling&, const Workspace<T>& w, const AcceptStep& step,
            const ProcessParams<T>&) {
  accept_rows(stream, w, step, -1);
}

template <typename T, typename Stream>
void accept(Stream& stream, const Beam& beam, const Workspace<T>& w, const AcceptStep& step,
            const ProcessParams<T>&) {
  beam_step(stream, {.search = beam_search(w, step),
                     .candidates = step.candidates,
                     .ended = step.ended,
                     .sentences = step.sentences,
                     .m = step.m,
                     .drawn = beam.draws});
}

// In the searches from here on the host ends no single row, as in transformers 4.
template <typename T, typename Stream>
void accept(Stream& stream, const Diverse& diverse, const Workspace<T>& w, const AcceptStep& step,
            const ProcessParams<T>& processors) {
  const int group = step.beams / diverse.groups;
  diverse_step<T>(stream, {.search = beam_search(w, step),
                           .best = w.best,
                           .lse = step.processed ? nullptr : w.lse,
                           .processors = step.processed ? &processors : nullptr,
                           .group_counts = w.inputs.group_counts,
                           .queue = step.contenders,
                           .sentences = step.sentences,
                           .k = step.m,
                           .m = step.m - (step.beams - group)});
}

template <typename T, typename Stream>
void accept(Stream& stream, const Constrained&, const Workspace<T>& w, const AcceptStep& step,
            const ProcessParams<T>&) {
  constrained_step(stream, {.search = beam_search(w, step),
                            .phrases = w.phrases.phrases,
                            .candidates = step.candidates,
                            .best = w.best,
                            .scores = w.scores,
                            .progress = w.phrases.progress,
                            .spare = w.phrases.spare,
                            .spare_count = w.phrases.spare_count,
                            .queue = w.phrases.queue,
                            .sentences = step.sentences,
                            .k = step.m,
                            .m = step.m,
                            .stride = w.logits_stride});
}

// Here a row's token is not yet known.
template <typename T, typename Stream>
void accept(Stream& stream, const Contrastive&, const Workspace<T>& w, const AcceptStep& step,
            const ProcessParams<T>&) {
  contrast_step(stream, {.search = beam_search(w, step),
                         .best = w.best,
                         .lse = w.lse,
                         .likeness = w.likeness,
                         .alpha = step.alpha,
                         .sentences = step.sentences});
}

// w.inputs.state becomes that of the next step. processors: what has made the scores, where they
// are processed.
template <typename T, typename Stream>
void accept_picked(Stream& stream, const Search& search, const Workspace<T>& w,
                   const AcceptStep& step, const ProcessParams<T>& processors) {
  std::visit([&](const auto& strategy) { accept(stream, strategy, w, step, processors); }, search);
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
