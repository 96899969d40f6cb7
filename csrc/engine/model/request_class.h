// The memory of a class of requests (engine/search/request_class.h), and its part of a step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/model/decoder.h"
#include "engine/search/request_class.h"
#include "engine/search/results.h"
#include "kernels/search/join.h"

namespace decoding {

template <typename T>
struct RequestClass {
  Limits limits{};   // its sentences, of so many rows each
  Workspace<T> w{};  // its inputs and its search's memory, beside the scratch of its present rows
  Search search;
  SearchConfig config;
  StepView step{};
  std::vector<JoiningSentence> joining;  // and have yet to be put behind the active ones

  RequestClass() = default;
  // index: of the class. all: sentences of one row each, as many as all classes together may have.
  RequestClass(Arena& arena, const ModelSpec& spec, int index, Limits all)
      : all_(all), index_(index), first_input_(int64_t{index} * all.batch) {
    all.tokens = 1;  // sources and prompts are read together with those of other classes
    ++all.target;    // a GPU may be a step ahead of the end of a sentence
    w.inputs = Inputs(arena, spec, all);
    static_cast<SearchMemory<T>&>(w) = SearchMemory<T>(arena, spec, all);
  }

  // For requests such as this one.
  void open(const Request& request, int vocab) {
    const ClassKey key = class_key(request);
    search = request.search;
    config = request.search_config();
    limits = all_;
    limits.batch = all_.batch / key.rows();
    limits.beams = key.step.beams;
    step.key = key.step;
    step.total_rows = limits.rows();
    step.vocab = vocab;
  }

  // Its rows of the next step are those of `pass` from `first` on, of at most so many sentences.
  void lay_out(const Workspace<T>& pass, const ModelSpec& spec, int64_t first, int sentences) {
    first_ = first;
    step.search = &search;
    step.key.sentences = sentences;
    const Inputs inputs = w.inputs;
    const SearchMemory<T> memory = w;
    const OverflowView overflow = w.overflow;
    w = pass;
    static_cast<SearchMemory<T>&>(w) = memory;
    w.overflow = overflow;
    w.inputs = inputs;
    w.inputs.ids = pass.inputs.ids + first;
    w.inputs.positions = pass.inputs.positions + first;
    w.inputs.random_row = pass.inputs.random_row + first;
    w.step.x += first * spec.decoder.hidden;
    w.step.normed += first * spec.decoder.hidden;
    w.logits += first * pass.logits_stride;
    w.scores += first * pass.logits_stride;
    w.group_max += first * groups_of(spec.decoder.vocab);
    w.group_sum += first * groups_of(spec.decoder.vocab);
    w.lse += first;
    w.best += first * all_.candidates;
  }

  int index() const { return index_; }
  int64_t first() const { return first_; }
  int64_t first_input() const { return first_input_; }
  // Of a sentence, among those of all classes.
  int64_t place_of(int sentence) const { return first_input_ + sentence; }

  StepRows rows() const {
    return {.state = w.inputs.state,
            .ids = w.inputs.ids,
            .positions = w.inputs.positions,
            .active = w.inputs.active,
            .sentences = step.key.sentences,
            .beams = limits.beams,
            .slots = limits.beams,
            .first = first_,
            .first_input = first_input_};
  }

  SearchResults results() const {
    return {{w.tokens, w.parents, limits.rows()},
            w.finished,
            w.inputs.length,
            limits.beams,
            config.max_finished};
  }
  // For parents counted from a sentence's first row.
  Results from_first(int sentence, Results results) const {
    results.first_slot = sentence * limits.beams;
    return results;
  }

  // sentences: `joining`, where the device reads it.
  JoinParams join_params(const JoiningSentence* sentences) const {
    const Inputs& in = w.inputs;
    return {.joining = sentences,
            .state = in.state,
            .active = in.active,
            .prompt_lengths = in.prompt_lengths,
            .first_tokens = in.first_tokens,
            .stop_first = in.stop_first,
            .stop_now = in.stop_now,
            .finished_count = in.finished_count,
            .done = in.done,
            .fault = in.fault,
            .sums = in.sums,
            .length = in.length,
            .group_counts = in.group_counts,
            .cache_indirection = w.cache_indirection,
            .count = static_cast<int>(joining.size()),
            .beams = limits.beams,
            .groups = config.groups,
            .total_rows = limits.rows(),
            .history = w.history};
  }

  FillRowsParams fill_params() const {
    const Inputs& in = w.inputs;
    return {.state = in.state,
            .active = in.active,
            .prompt_lengths = in.prompt_lengths,
            .first_tokens = in.first_tokens,
            .tokens = w.tokens,
            .config = step.config,
            .ids = in.ids,
            .positions = in.positions,
            .random_row = in.random_row,
            .sentences = step.key.sentences,
            .beams = limits.beams,
            .total_rows = limits.rows()};
  }

 private:
  Limits all_{};
  int index_ = 0;
  int64_t first_ = 0, first_input_ = 0;
};

// pass, classes: of a runner. all: as a class is made with.
template <typename Memory, typename T, typename Classes>
void bind_overflow(OverflowMemory<Memory>& memory, Workspace<T>& pass, Classes& classes,
                   const ModelSpec& spec, const Limits& all) {
  memory.bind(pages_of(spec, all) * kPageSize, int64_t{all.batch} * classes.size());
  pass.overflow = memory.view();
  for (auto& c : classes) c.w.overflow = memory.view(c.place_of(0));
}

}  // namespace decoding
