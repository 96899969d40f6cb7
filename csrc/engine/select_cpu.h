// From logits to the next step on the CPU, put together from one kernel per part: the rules that
// every search obeys, and one overload of choose_tokens per strategy. On CUDA kernels/select.h does
// all of it.
#pragma once

#include "engine/search.h"
#include "engine/workspace.h"
#include "kernels/beam.h"
#include "kernels/cpu/stream.h"
#include "kernels/logits.h"
#include "kernels/rows.h"
#include "kernels/sample.h"
#include "kernels/topk.h"

namespace decoding {

// What a team needs beside the workspace.
struct SelectScratch {
  Candidate* queue;   // [threads, V]
  float* maxima;      // [threads, G]
  Candidate* merged;  // [B, K * candidates]
};

// What a step works on.
struct Step {
  const Rules& rules;
  Ends ends;
  SelectScratch scratch;
  StepState now;
  int beams;
  int slots;  // of the plan
  int vocab;
  int rows() const { return now.live_count * beams; }
};

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
  const Rules& rules = step.rules;
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

template <typename T, typename Stream>
void find_best(Stream& stream, const Workspace<T>& w, const Step& step, int k) {
  topk<T>(stream, {.logits = w.logits,
                   .group_max = w.group_max,
                   .best = w.best,
                   .queue = step.scratch.queue,
                   .maxima = step.scratch.maxima,
                   .rows = step.rows(),
                   .vocab = step.vocab,
                   .k = k});
}

// fallback: see rows.h.
template <typename T, typename Stream>
void accept(Stream& stream, const Workspace<T>& w, const Step& step, int fallback) {
  accept_tokens(stream, {.chosen = w.best,
                         .lse = w.lse,
                         .live = w.inputs.live,
                         .sentences = w.inputs.rules,
                         .ends = step.ends,
                         .tokens = w.tokens,
                         .length = w.inputs.length,
                         .done = w.inputs.done,
                         .fault = w.inputs.fault,
                         .live_count = step.now.live_count,
                         .beams = step.beams,
                         .slots = step.slots,
                         .vocab = step.vocab,
                         .pad = step.rules.pad,
                         .fallback = fallback,
                         .step = step.now.number});
}

template <typename T, typename Stream>
void choose_tokens(Stream& stream, const Greedy&, const Workspace<T>& w, const Step& step) {
  find_best(stream, w, step, 1);
  accept(stream, w, step, 0);  // everything banned: Hugging Face takes id 0
}

template <typename T, typename Stream>
void choose_tokens(Stream& stream, const Sampling&, const Workspace<T>& w, const Step& step) {
  sample<T>(stream, {.logits = w.logits,
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
                     .step = step.now.number});
  accept(stream, w, step, -1);
}

template <typename T, typename Stream>
void choose_tokens(Stream& stream, const Beam& search, const Workspace<T>& w, const Step& step) {
  const Rules& rules = step.rules;
  const int m = beam_candidates(rules, step.beams);
  const int64_t table = int64_t{step.slots} * w.history;
  find_best(stream, w, step, m);
  beam_step(stream, {.best = w.best,
                     .lse = w.lse,
                     .live = w.inputs.live,
                     .eos = rules.eos.data(),
                     .sums = w.inputs.sums,
                     .tokens = w.tokens,
                     .parents = w.parents,
                     .slots = w.slots + step.now.number % 2 * table,
                     .next_slots = w.slots + (step.now.number + 1) % 2 * table,
                     .finished = w.finished,
                     .finished_count = w.inputs.finished_count,
                     .done = w.inputs.done,
                     .fault = w.inputs.fault,
                     .queue = step.scratch.merged,
                     .live_count = step.now.live_count,
                     .beams = step.beams,
                     .m = m,
                     .vocab = step.vocab,
                     .eos_count = static_cast<int>(rules.eos.size()),
                     .total_slots = step.slots,
                     .history = w.history,
                     .step = step.now.number,
                     .position = step.now.position,
                     .max_new = rules.max_new,
                     .length_penalty = search.length_penalty,
                     .early_stopping = search.early_stopping});
}

// The whole of it. now: of this step; w.inputs.state becomes that of the next.
template <typename T, cpu::Isa isa>
void select(cpu::Stream<isa>& stream, const Search& search, const Workspace<T>& w,
            const Step& step) {
  apply_rules(stream, w, step);
  std::visit([&](const auto& strategy) { choose_tokens(stream, strategy, w, step); }, search);
  gather_live(stream, {.now = w.inputs.state,
                       .done = w.inputs.done,
                       .first = w.inputs.first,
                       .tokens = w.tokens,
                       .sentences = w.inputs.rules,
                       .live = w.inputs.live,
                       .ids = w.inputs.ids,
                       .at = w.inputs.at,
                       .random_row = w.inputs.random_row,
                       .beams = step.beams,
                       .slots = step.slots});
}

}  // namespace decoding
