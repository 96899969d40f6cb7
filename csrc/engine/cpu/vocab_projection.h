// From the last layer's output to what a step chooses from, on the CPU: to the best tokens of each
// row at once where nothing asks for more, else to all logits.
#pragma once

#include <algorithm>

#include "engine/model/blocks.h"
#include "engine/search/shortlist.h"
#include "engine/search/step.h"
#include "kernels/linear/vocab_projection.h"

namespace decoding {

// The outputs that a call may choose, and those among them that it bans where every sentence bans
// the same.
struct Choice {
  Outputs outputs;
  bool is_shared;  // whether all sentences have the same lists and min_new
  int min_new;
  std::vector<int32_t> banned{}, early{};  // ascending outputs; early: with min_new's EOS

  bool is_early(const ActiveSentence& sentence) const { return sentence.number <= min_new; }
  bool same_lists(const Choice& other) const {
    return min_new == other.min_new && banned == other.banned && early == other.early;
  }
};

inline Choice make_choice(const Outputs& outputs, const Request& request) {
  const SentenceConfig& first = request.configs[0];
  const auto differs = [&](const SentenceConfig& c) {
    return c.banned != first.banned || c.eos != first.eos || c.min_new != first.min_new;
  };
  Choice choice{.outputs = outputs, .is_shared = !request.any(differs), .min_new = first.min_new};
  const auto append = [&](Span span) {
    const auto begin = request.words.begin() + span.begin;
    choice.early.insert(choice.early.end(), begin, begin + span.count);
  };
  append(first.banned);
  choice.banned = choice.early;
  append(first.eos);
  choice.banned = outputs.find(std::move(choice.banned));
  choice.early = outputs.find(std::move(choice.early));
  return choice;
}

// Whether a step chooses each row's best, of all but the same banned tokens: then nothing reads the
// logits. There must be an active sentence.
template <typename T>
bool takes_best(const ModelSpec& spec, const Choice& choice, const Workspace<T>& w,
                const StepView& step) {
  const bool samples = step.key.samples || step.key.kind == SearchKind::sampling;
  if (spec.logits_cap != 0.0f || samples || step.key.processed || !choice.is_shared) return false;
  const bool is_early = choice.is_early(*w.inputs.active);
  const auto takes_other = [&](const ActiveSentence& sentence) {
    const SentenceConfig& config = step.config.sentences[sentence.id];
    return config.renormalize || config.forces(sentence.number) ||
           choice.is_early(sentence) != is_early;
  };
  return std::none_of(w.inputs.active, w.inputs.active + step.key.sentences, takes_other);
}

// Writes w.best and w.lse, as find_best (select.h) would. norm: stands before the projection.
template <typename T, typename Stream>
void project_best(Stream& stream, const Choice& choice, const Norm& norm, const Workspace<T>& w,
                  const StepView& step) {
  const Activations<T>& a = w.step;
  const bool is_early = choice.is_early(*w.inputs.active);  // as are all others
  const std::vector<int32_t>& banned = is_early ? choice.early : choice.banned;
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
                      .thread_best = step.scratch.best,
                      .scratch = a.scratch,
                      .rows = step.rows(),
                      .k = step.key.candidates,
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
  const LinearParams<T> product{.x = a.x,
                                .norm = norm,
                                .normed = a.normed,
                                .weight = outputs.linear.weight,
                                .bias = outputs.linear.bias,
                                .y = logits,
                                .scratch = a.scratch,
                                .rows = rows};
  const bool split = is_split(stream);
  const int count = split ? spec.decoder.vocab : outputs.count();
  split ? gathered_linear(stream, product, count) : linear<T>(stream, product);
  cap_logits(stream, spec, logits, rows, count, count);
  if (outputs.tokens == nullptr) return;
  spread_logits(stream, {.x = memory.logits,
                         .tokens = outputs.tokens,
                         .y = w.logits,
                         .rows = rows,
                         .count = outputs.count(),
                         .vocab = spec.decoder.vocab});
}

}  // namespace decoding
