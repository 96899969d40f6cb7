// From logits to the next step on a GPU: the one launch of kernels/select.h, over a session's
// memory.
#pragma once

#include "engine/rules_cuda.h"
#include "engine/workspace.h"
#include "kernels/cuda/stream.h"
#include "kernels/select.h"

namespace decoding {

// What a GPU's search needs beside the workspace.
struct CudaSearch {
  CudaRules rules;
  int32_t* tickets;  // [B * (K + 1) + 1], 0 before and after, see select.h

  CudaSearch() = default;
  CudaSearch(Arena& arena, const Limits& limits, int vocab)
      : rules(arena, vocab),
        tickets(arena.take<int32_t>("select_tickets", {ticket_count(limits)})) {}

  static int64_t ticket_count(const Limits& limits) {
    return int64_t{limits.batch} * (limits.beams + 1) + 1;
  }
};

// What a captured step is made for.
struct CudaStep {
  SearchKind kind;
  StepState* seen;  // in the host's memory, see select.h
  int sentences, beams;
  int candidates;  // of a row
  int vocab;
  int slots;  // of the plan
};

template <typename T>
void select(cuda::Stream& stream, const Workspace<T>& w, const CudaSearch& search,
            const CudaStep& step) {
  select<T>(stream, {.kind = step.kind,
                     .logits = w.logits,
                     .rules = search.rules.rules(),
                     .eos = search.rules.eos(),
                     .banned = search.rules.banned(),
                     .forced_first = search.rules.forced_first(),
                     .forced_last = search.rules.forced_last(),
                     .first = w.inputs.first,
                     .items = w.inputs.items,
                     .now = w.inputs.state,
                     .seen = step.seen,
                     .live = w.inputs.live,
                     .sums = w.inputs.sums,
                     .tokens = w.tokens,
                     .parents = w.parents,
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
