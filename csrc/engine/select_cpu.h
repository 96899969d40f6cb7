// From logits to the next step on the CPU, put together from one kernel per part. On CUDA
// kernels/select.h does most of it in one launch.
//
//   pick     from the logits, or from the scores that a call's controls have made of them
//   (process),
//            to what may follow: a token of each row, or candidates of each sentence
//   accept   takes them in, and gathers the rows of the next step
//
// One overload of each per strategy.
#pragma once

#include "engine/phrases.h"
#include "engine/search.h"
#include "engine/workspace.h"
#include "kernels/beam.h"
#include "kernels/contrast.h"
#include "kernels/cpu/stream.h"
#include "kernels/diverse.h"
#include "kernels/draw.h"
#include "kernels/logits.h"
#include "kernels/process.h"
#include "kernels/rows.h"
#include "kernels/sample.h"
#include "kernels/topk.h"
#include "kernels/warp.h"

namespace decoding {

// What a team needs beside the workspace.
struct SelectScratch {
  Candidate* queue;       // [threads, V]
  float* maxima;          // [threads, G]
  uint32_t* marks;        // [threads, marks_size(V)], only with controls
  Contender* contenders;  // [B, K * candidates]
  Candidate* candidates;  // [B, candidates]
  float* keys;            // [R, candidates]
};

// What a step works on.
struct Step {
  const Request& request;
  Ends ends;
  SelectScratch scratch;
  StepState now;
  int beams;
  int slots;   // of the plan
  int places;  // of a finished list
  int vocab;

  const Rules& rules() const { return request.rules; }
  int rows() const { return now.live_count * beams; }
};

template <typename T>
ProcessParams<T> process_params(const Workspace<T>& w, const Step& step, int stages) {
  const bool guided = step.request.guided();
  return {.logits = w.logits,
          .unconditional = guided ? w.logits + int64_t{step.rows()} * w.logits_stride : nullptr,
          .scores = w.scores,
          .lse = w.lse,
          .unconditional_lse = guided ? w.lse + step.rows() : nullptr,
          .rules = &step.request.processing->rules,
          .words = w.words,
          .sentence_rules = w.inputs.rules,
          .now = w.inputs.state,
          .live = w.inputs.live,
          .ids = w.inputs.ids,
          .tokens = w.tokens,
          .slots = w.slots,
          .marks = step.scratch.marks,
          .sentences = step.now.live_count,
          .beams = step.beams,
          .vocab = step.vocab,
          .stride = w.logits_stride,
          .score_stride = w.logits_stride,
          .total_slots = step.slots,
          .history = w.history,
          .stages = stages,
          .competing = beam_of(step.request.search) != nullptr};
}

// Parts of what the controls make of the logits: stages of process.h, the warpers before the last.
template <typename T, typename Stream>
void process_scores(Stream& stream, const Workspace<T>& w, const Step& step, int stages) {
  if (const int first = stages & (kBefore | kMiddle)) {
    process<T>(stream, process_params(w, step, first));
  }
  if ((stages & kLast) == 0) return;
  if (const auto& rules = step.request.processing->warp) {
    warp(stream, {.scores = w.scores,
                  .rules = &*rules,
                  .own = w.inputs.rules,
                  .now = w.inputs.state,
                  .live = w.inputs.live,
                  .group_max = w.group_max,
                  .queue = step.scratch.queue,
                  .maxima = step.scratch.maxima,
                  .sentences = step.now.live_count,
                  .beams = step.beams,
                  .vocab = step.vocab,
                  .stride = w.logits_stride});
  }
  if (step.request.processing->rules.renormalize)
    process<T>(stream, process_params(w, step, kLast));
}

template <typename T, typename Stream>
void ban(Stream& stream, const Workspace<T>& w, const Step& step, const std::vector<int32_t>& ids) {
  if (ids.empty()) return;
  ban_tokens<T>(stream, {.logits = w.logits,
                         .group_max = w.group_max,
                         .group_sum = w.group_sum,
                         .ids = ids.data(),
                         .rows = step.rows(),
                         .vocab = step.vocab,
                         .count = static_cast<int>(ids.size())});
}

// In the rows of live sentence i.
template <typename T, typename Stream>
void force(Stream& stream, const Workspace<T>& w, const Step& step, int i, const int32_t* ids,
           size_t count) {
  const int64_t row = int64_t{i} * step.beams, groups = groups_of(step.vocab);
  force_tokens<T>(stream, {.logits = w.logits + row * step.vocab,
                           .group_max = w.group_max + row * groups,
                           .group_sum = w.group_sum + row * groups,
                           .lse = w.lse + row,
                           .ids = ids,
                           .rows = step.beams,
                           .vocab = step.vocab,
                           .count = static_cast<int>(count)});
}

// The log-sum-exp of the raw logits, then what the rules leave of them.
template <typename T, typename Stream>
void apply_rules(Stream& stream, const Workspace<T>& w, const Step& step) {
  const Rules& rules = step.rules();
  scan_logits<T>(stream, {.logits = w.logits,
                          .group_max = w.group_max,
                          .group_sum = w.group_sum,
                          .lse = w.lse,
                          .rows = step.rows(),
                          .vocab = step.vocab});
  ban(stream, w, step, rules.banned);
  if (step.now.number <= rules.min_new) ban(stream, w, step, rules.eos);
  for (int i = 0; i < step.now.live_count; ++i) {
    const SentenceRules& own = w.inputs.rules[w.inputs.live[i]];
    if (step.now.number == 1 && own.forced_first >= 0) {
      force(stream, w, step, i, &own.forced_first, 1);
    }
    if (step.now.number == own.max_new && !rules.forced_last.empty()) {
      force(stream, w, step, i, rules.forced_last.data(), rules.forced_last.size());
    }
  }
  if (rules.renormalize) {
    renormalize(stream, {.group_max = w.group_max,
                         .group_sum = w.group_sum,
                         .lse = w.lse,
                         .rows = step.rows(),
                         .vocab = step.vocab});
  }
}

// What the strategies choose from: scores, their groups' maxima found again, or logits by the
// rules.
template <typename T, typename Stream>
const float* choices(Stream& stream, const Workspace<T>& w, const Step& step) {
  if (!step.request.processing) {
    apply_rules(stream, w, step);
    return w.logits;
  }
  scan_logits<float>(stream, {.logits = w.scores,
                              .group_max = w.group_max,
                              .group_sum = w.group_sum,
                              .lse = is_contrastive(step.request.search) ? w.lse : nullptr,
                              .rows = step.rows(),
                              .vocab = step.vocab});
  return w.scores;
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
