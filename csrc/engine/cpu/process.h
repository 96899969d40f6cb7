// What a step of the CPU chooses from: logits by the rules that every search obeys, or the scores
// that a call's controls make of them.
#pragma once

#include "engine/model/workspace.h"
#include "engine/search/request.h"
#include "kernels/cpu/stream.h"
#include "kernels/search/beam.h"
#include "kernels/search/filters.h"
#include "kernels/search/logits.h"
#include "kernels/search/processors.h"

namespace decoding {

// What a team needs beside the workspace.
struct SelectScratch {
  Candidate* queue;       // [threads, V]
  float* maxima;          // [threads, G]
  uint32_t* marks;        // [threads, marks_size(V)], only with controls
  Contender* contenders;  // [B, K * candidates]
  Candidate* candidates;  // [B, candidates]
  float* keys;            // [R, candidates]
  Candidate* seen;        // [threads, R, candidates]
};

// What a step works on.
struct Step {
  const Request& request;
  Ends ends;
  BeamRules beam_rules;
  SelectScratch scratch;
  StepState now;
  int beams;
  int slots;  // of the plan
  int vocab;

  const Rules& rules() const { return request.rules; }
  int rows() const { return now.live_count * beams; }
  bool forces_first(const SentenceRules& own) const {
    return now.number == 1 && own.forced_first >= 0;
  }
  bool forces_last(const SentenceRules& own) const {
    return now.number == own.max_new && !rules().forced_last.empty();
  }
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

// Parts of what the controls make of the logits: stages of processors.h, the warpers before the
// last.
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
    if (step.forces_first(own)) force(stream, w, step, i, &own.forced_first, 1);
    if (step.forces_last(own)) {
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

}  // namespace decoding
