// From logits to the next tokens: the rules that every search obeys, and one overload of
// choose_tokens per strategy.
#pragma once

#include <algorithm>
#include <cstdint>
#include <variant>
#include <vector>

#include "engine/workspace.h"
#include "kernels/beam.h"
#include "kernels/logits.h"
#include "kernels/rows.h"
#include "kernels/sample.h"
#include "kernels/topk.h"

namespace decoding {

// Steps count from 1.
struct Rules {
  int max_new;                        // tokens that a row may have
  int min_new;                        // no EOS as one of the first min_new tokens
  std::vector<int32_t> eos;           // each of them ends a row
  int pad;                            // what an ended row reads while its sentence goes on
  std::vector<int32_t> banned;        // never chosen
  std::vector<int32_t> forced_first;  // where not empty, the only tokens of the first step
  std::vector<int32_t> forced_last;   // and of step max_new
  bool renormalize;                   // what the rules leave adds up to 1 again
};

struct Greedy {};

struct Sampling {
  uint64_t seed;
  float temperature;
  int top_k;    // 0: off
  float top_p;  // 1: off
};

struct Beam {
  double length_penalty;
  EarlyStopping early_stopping;
};

using Search = std::variant<Greedy, Sampling, Beam>;

// What a step works on.
struct Step {
  const Rules& rules;
  int live_count, beams;
  int slots;  // of the plan
  int vocab;
  int number;    // g
  int position;  // of the token just read, in every row's history
  int rows() const { return live_count * beams; }
};

// Candidates of each row that beam search needs, so that enough of them go on whatever ends.
inline int beam_candidates(const Rules& rules, int beams) {
  return std::max<int>(2, 1 + rules.eos.size()) * beams;
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
  const auto ban = [&](const std::vector<int32_t>& ids) {
    ban_tokens<T>(stream, {.logits = w.logits,
                           .group_max = w.group_max,
                           .group_sum = w.group_sum,
                           .ids = ids.data(),
                           .rows = step.rows(),
                           .vocab = step.vocab,
                           .count = static_cast<int>(ids.size())});
  };
  const auto force = [&](const std::vector<int32_t>& ids) {
    force_tokens<T>(stream, {.logits = w.logits,
                             .group_max = w.group_max,
                             .group_sum = w.group_sum,
                             .lse = w.lse,
                             .ids = ids.data(),
                             .rows = step.rows(),
                             .vocab = step.vocab,
                             .count = static_cast<int>(ids.size())});
  };
  if (!rules.banned.empty()) ban(rules.banned);
  if (step.number <= rules.min_new && !rules.eos.empty()) ban(rules.eos);
  if (step.number == 1 && !rules.forced_first.empty()) force(rules.forced_first);
  if (step.number == rules.max_new && !rules.forced_last.empty()) force(rules.forced_last);
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
                   .queue = w.queue,
                   .maxima = w.maxima,
                   .rows = step.rows(),
                   .vocab = step.vocab,
                   .k = k});
}

// fallback: see rows.h.
template <typename T, typename Stream>
void accept(Stream& stream, const Workspace<T>& w, const Step& step, int fallback) {
  const Rules& rules = step.rules;
  accept_tokens(stream, {.chosen = w.best,
                         .lse = w.lse,
                         .live = w.live,
                         .eos = rules.eos.data(),
                         .tokens = w.tokens,
                         .length = w.length,
                         .done = w.done,
                         .fault = w.fault,
                         .live_count = step.live_count,
                         .beams = step.beams,
                         .slots = step.slots,
                         .eos_count = static_cast<int>(rules.eos.size()),
                         .pad = rules.pad,
                         .fallback = fallback,
                         .step = step.number,
                         .max_new = rules.max_new});
}

template <typename T, typename Stream>
void choose_tokens(Stream& stream, const Greedy&, const Workspace<T>& w, const Step& step) {
  find_best(stream, w, step, 1);
  accept(stream, w, step, 0);  // everything banned: Hugging Face takes id 0
}

template <typename T, typename Stream>
void choose_tokens(Stream& stream, const Sampling& search, const Workspace<T>& w,
                   const Step& step) {
  sample<T>(stream, {.logits = w.logits,
                     .group_max = w.group_max,
                     .random_row = w.random_row,
                     .chosen = w.best,
                     .queue = w.queue,
                     .maxima = w.maxima,
                     .seed = search.seed,
                     .rows = step.rows(),
                     .vocab = step.vocab,
                     .step = step.number,
                     .temperature = search.temperature,
                     .top_k = search.top_k,
                     .top_p = search.top_p});
  accept(stream, w, step, -1);
}

template <typename T, typename Stream>
void choose_tokens(Stream& stream, const Beam& search, const Workspace<T>& w, const Step& step) {
  const Rules& rules = step.rules;
  const int m = beam_candidates(rules, step.beams);
  find_best(stream, w, step, m);
  beam_step(stream, {.best = w.best,
                     .lse = w.lse,
                     .live = w.live,
                     .eos = rules.eos.data(),
                     .sums = w.sums,
                     .tokens = w.tokens,
                     .parents = w.parents,
                     .slots = w.slots,
                     .next_slots = w.next_slots,
                     .finished = w.finished,
                     .finished_count = w.finished_count,
                     .done = w.done,
                     .fault = w.fault,
                     .queue = w.merged,
                     .live_count = step.live_count,
                     .beams = step.beams,
                     .m = m,
                     .vocab = step.vocab,
                     .eos_count = static_cast<int>(rules.eos.size()),
                     .total_slots = step.slots,
                     .history = w.history,
                     .step = step.number,
                     .position = step.position,
                     .max_new = rules.max_new,
                     .length_penalty = search.length_penalty,
                     .early_stopping = search.early_stopping});
}

}  // namespace decoding
