// From logits to the next step on a GPU: the one launch of kernels/search/select.h, over a
// session's memory.
#pragma once

#include "engine/cuda/config.h"
#include "engine/model/workspace.h"
#include "kernels/cuda/stream.h"
#include "kernels/search/filters.h"
#include "kernels/search/processors.h"
#include "kernels/search/select.h"

namespace decoding {

// What a GPU's search needs beside the workspace.
struct CudaSearch {
  CudaRules rules;
  int32_t* tickets;  // [B * (K + 1) + 1], 0 before and after, see select.h
  // of the rarer searches
  float* keys;            // [R, candidates]
  Candidate* candidates;  // [B, K * candidates]
  Contender* contenders;  // [B, K * candidates]
  float* perturbed;       // [R, V], as far apart as logits; only with controls

  CudaSearch() = default;
  // stride: between rows of logits.
  CudaSearch(Arena& arena, const Limits& limits, int vocab, int stride)
      : rules(arena, vocab),
        tickets(arena.take<int32_t>("select_tickets", {ticket_count(limits)})) {
    const int64_t all = int64_t{limits.beams} * limits.candidates;
    keys = arena.take<float>("keys", {limits.rows(), limits.candidates});
    candidates = arena.take<Candidate>("candidates", {limits.batch, all});
    contenders = arena.take<Contender>("contenders", {limits.batch, all});
    perturbed = arena.take<float>("perturbed", {limits.controls > 0 ? limits.rows() : 0, stride});
  }

  static int64_t ticket_count(const Limits& limits) {
    return int64_t{limits.batch} * (limits.beams + 1) + 1;
  }
};

// What a captured step is made for.
struct CudaStep {
  const Search* search;
  SearchKind kind;
  SelectPart part;
  bool processed, guided, warped, renormalized, draws;
  StepState* seen;  // in the host's memory, see select.h
  int sentences, beams;
  int candidates;  // of a row
  int vocab;
  int slots;  // of the plan
  int pad;    // what an ended row reads while its sentence goes on
};

template <typename T>
ProcessParams<T> process_params(const Workspace<T>& w, const CudaSearch& search,
                                const CudaStep& step, int stages) {
  const int64_t searched = int64_t{step.sentences} * step.beams;
  return {.logits = w.logits,
          .unconditional = step.guided ? w.logits + searched * w.logits_stride : nullptr,
          .scores = w.scores,
          .lse = w.lse,
          .unconditional_lse = step.guided ? w.lse + searched : nullptr,
          .rules = search.rules.process(),
          .words = w.words,
          .sentence_rules = w.inputs.rules,
          .now = w.inputs.state,
          .live = w.inputs.live,
          .ids = w.inputs.ids,
          .tokens = w.tokens,
          .slots = w.slots,
          .sentences = step.sentences,
          .beams = step.beams,
          .vocab = step.vocab,
          .stride = w.logits_stride,
          .score_stride = w.logits_stride,
          .total_slots = step.slots,
          .history = w.history,
          .stages = stages,
          .competing = step.kind == SearchKind::beam};
}

// Parts of what the controls make of the logits: stages of processors.h, the warpers before the
// last.
template <typename T>
void process_scores(cuda::Stream& stream, const Workspace<T>& w, const CudaSearch& search,
                    const CudaStep& step, int stages) {
  if (const int first = stages & (kBefore | kMiddle)) {
    process<T>(stream, process_params(w, search, step, first));
  }
  if ((stages & kLast) == 0) return;
  if (step.warped) {
    warp(stream, {.scores = w.scores,
                  .rules = search.rules.warp(),
                  .own = w.inputs.rules,
                  .now = w.inputs.state,
                  .live = w.inputs.live,
                  .group_max = w.group_max,
                  .sentences = step.sentences,
                  .beams = step.beams,
                  .vocab = step.vocab,
                  .stride = w.logits_stride});
  }
  if (step.renormalized) process<T>(stream, process_params(w, search, step, kLast));
}

// choices: the logits, or the processed scores.
template <typename Choice, typename T>
void select(cuda::Stream& stream, Choice* choices, const Workspace<T>& w, const CudaSearch& search,
            const CudaStep& step) {
  select<Choice>(stream, {.kind = step.kind,
                          .part = step.part,
                          .logits = choices,
                          .rules = search.rules.rules(),
                          .sentence_rules = w.inputs.rules,
                          .eos = search.rules.eos(),
                          .banned = search.rules.banned(),
                          .forced_last = search.rules.forced_last(),
                          .stop_now = w.inputs.stop_now,
                          .stop_first = w.inputs.stop_first,
                          .first = w.inputs.first,
                          .now = w.inputs.state,
                          .seen = step.seen,
                          .live = w.inputs.live,
                          .sums = w.inputs.sums,
                          .tokens = w.tokens,
                          .parents = w.parents,
                          .stop_states = w.stop_states,
                          .slots = w.slots,
                          .length = w.inputs.length,
                          .finished = w.finished,
                          .finished_count = w.inputs.finished_count,
                          .done = w.inputs.done,
                          .fault = w.inputs.fault,
                          .ids = w.inputs.ids,
                          .at = w.inputs.at,
                          .random_row = w.inputs.random_row,
                          .group_max = w.group_max,
                          .group_sum = w.group_sum,
                          .lse = w.lse,
                          .best = w.best,
                          .tickets = search.tickets,
                          .sentences = step.sentences,
                          .beams = step.beams,
                          .m = step.candidates,
                          .vocab = step.vocab,
                          .stride = w.logits_stride,
                          .total_slots = step.slots,
                          .history = w.history});
}

}  // namespace decoding
