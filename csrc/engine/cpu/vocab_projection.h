// From the last layer's output to what a step chooses from, on the CPU: to the best tokens of each
// row at once where nothing asks for more, else to all logits.
#pragma once

#include <algorithm>

#include "engine/cpu/process.h"
#include "engine/model/blocks.h"
#include "engine/search/shortlist.h"
#include "kernels/linear/vocab_projection.h"

namespace decoding {

// The outputs that a call may choose, and those among them that it bans.
struct Choice {
  Outputs outputs;
  std::vector<int32_t> banned, banned_early;  // ascending outputs; early: with min_new's EOS

  const std::vector<int32_t>& banned_in(const Step& step) const {
    return step.now.number <= step.rules().min_new ? banned_early : banned;
  }
};

inline Choice make_choice(const Outputs& outputs, const Rules& rules) {
  std::vector<int32_t> early = rules.banned;
  early.insert(early.end(), rules.eos.begin(), rules.eos.end());
  return {outputs, outputs.find(rules.banned), outputs.find(early)};
}

// Whether some row has no choice in this step.
template <typename T>
bool is_forced(const Workspace<T>& w, const Step& step) {
  const auto forced = [&](int32_t sentence) {
    const SentenceRules& own = w.inputs.rules[sentence];
    return step.forces_first(own) || step.forces_last(own);
  };
  return std::any_of(w.inputs.live, w.inputs.live + step.now.live_count, forced);
}

// Whether a step chooses each row's best, of all but banned tokens: then nothing reads the logits.
template <typename T>
bool takes_best(const ModelSpec& spec, const Workspace<T>& w, const Step& step) {
  const Request& request = step.request;
  const Beam* beam = beam_of(request.search);
  const bool draws =
      beam != nullptr ? beam->draws : !std::holds_alternative<Greedy>(request.search);
  return spec.logits_cap == 0.0f && !draws && !request.processing && !request.rules.renormalize &&
         !is_forced(w, step);
}

// Writes w.best and w.lse, as find_best (select.h) would. norm: stands before the projection.
template <typename T, typename Stream>
void project_best(Stream& stream, const Choice& choice, const Norm& norm, const Workspace<T>& w,
                  const Step& step, int k) {
  const Activations<T>& a = w.step;
  const std::vector<int32_t>& banned = choice.banned_in(step);
  project<T>(stream, {.x = a.x,
                      .norm = norm,
                      .normed = a.normed,
                      .weight = choice.outputs.linear.weight,
                      .bias = choice.outputs.linear.bias,
                      .tokens = choice.outputs.tokens,
                      .banned = banned.data(),
                      .group_max = w.group_max,
                      .group_sum = w.group_sum,
                      .lse = w.lse,
                      .best = w.best,
                      .seen = step.scratch.seen,
                      .scratch = a.scratch,
                      .rows = step.rows(),
                      .k = k,
                      .banned_count = static_cast<int>(banned.size())});
}

// Writes w.logits.
template <typename T, typename Stream>
void project_logits(Stream& stream, const ModelSpec& spec, const Choice& choice,
                    const ShortlistMemory& memory, const Norm& norm, const Workspace<T>& w,
                    int rows) {
  const Outputs& outputs = choice.outputs;
  T* logits = outputs.tokens != nullptr ? memory.logits : w.logits;
  const Activations<T>& a = w.step;
  linear<T>(stream, {.x = a.x,
                     .norm = norm,
                     .normed = a.normed,
                     .weight = outputs.linear.weight,
                     .bias = outputs.linear.bias,
                     .y = logits,
                     .scratch = a.scratch,
                     .rows = rows});
  cap_logits(stream, spec, logits, rows, outputs.count(), outputs.count());
  if (outputs.tokens == nullptr) return;
  spread_logits(stream, {.x = memory.logits,
                         .tokens = outputs.tokens,
                         .y = w.logits,
                         .rows = rows,
                         .count = outputs.count(),
                         .vocab = spec.decoder.vocab});
}

}  // namespace decoding
