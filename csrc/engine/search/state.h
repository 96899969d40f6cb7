// Named views of what a search keeps, for callers that look at it between the parts of a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/workspace.h"
#include "engine/search/results.h"
#include "engine/search/step.h"

namespace decoding {

// state: of w.inputs.state, on the host. source: tokens of the longest one. decoding._C's
// Session.state() says what each view is.
template <typename T>
EngineState engine_state(const Workspace<T>& w, const StepState& state, const StepKey& key,
                         const Request& request, const StepScratch& scratch, const ModelSpec& spec,
                         const Limits& limits, int source) {
  EngineState views;
  const auto add = [&]<typename Item>(const char* name, const Item* data,
                                      std::vector<int64_t> shape, std::vector<int64_t> strides) {
    views.push_back({name, type_name<Item>(), std::move(shape), std::move(strides), data});
  };
  const int64_t active = state.active_count, rows = active * key.beams, vocab = spec.decoder.vocab;
  const int64_t all = int64_t{request.sentences()} * key.beams, stride = w.logits_stride;
  const int64_t steps = state.number - 1;
  constexpr int64_t kActiveWords = sizeof(ActiveSentence) / sizeof(int32_t);
  add("number", &w.inputs.active->number, {active}, {kActiveWords});
  add("active", &w.inputs.active->id, {active}, {kActiveWords});
  add("logits", w.logits, {rows, vocab}, {stride, 1});
  if (key.processed) add("scores", w.scores, {rows, vocab}, {stride, 1});
  if (merges_rows(request.search)) {
    add("candidate_ids", &scratch.candidates->id, {active, key.candidates},
        {2 * key.candidates, 2});
  } else if (beam_of(request.search) == nullptr && key.candidates == 1) {
    add("candidate_ids", &w.best->id, {rows, 1}, {2, 2});
  }
  add("tokens", w.tokens, {limits.target, all}, {limits.rows(), 1});
  add("parent_rows", w.parents, {limits.target, all}, {limits.rows(), 1});
  add("lengths", w.inputs.length, {all}, {1});
  if (const int64_t most = request.max_finished(); most > 0) {
    constexpr int64_t kWords = sizeof(Hypothesis) / sizeof(int32_t);
    const std::vector<int64_t> shape = {request.sentences(), most}, apart = {kWords * most, kWords};
    add("finished_scores", &w.finished->score, shape, apart);
    add("finished_sums", &w.finished->sum, shape, apart);
    add("finished_lengths", &w.finished->length, shape, apart);
    add("finished_rows", &w.finished->slot, shape, apart);
    add("finished_tokens", &w.finished->token, shape, apart);
    add("finished_count", w.inputs.finished_count, {request.sentences()}, {1});
  }
  if (w.attentions != nullptr) {
    add("attentions", w.attentions, {steps, all, source},
        {limits.rows() * int64_t{limits.source}, limits.source, 1});
  }
  return views;
}

}  // namespace decoding
