// The view of one step that fills the kernels' parameters, alike on both devices.
#pragma once

#include <cstdint>

#include "core/arena.h"
#include "core/spec.h"
#include "engine/search/request.h"
#include "kernels/search/beam.h"
#include "kernels/search/select.h"
#include "kernels/search/step.h"

namespace decoding {

// Scratch of a step; what a device has no use for is null.
struct StepScratch {
  Candidate* candidates;        // [B, K * candidates], of sentences whose rows compete
  KeyedCandidate* merge_queue;  // [B, K * candidates]
  float* keys;                  // [R, candidates], of sampled candidates
  // CPU
  Candidate* queue = nullptr;  // [threads, V]
  float* maxima = nullptr;     // [threads, G]
  uint32_t* marks = nullptr;   // [threads, marks_size(V)], only where scores are processed
  Candidate* best = nullptr;   // [threads, R, candidates]
  // CUDA
  float* perturbed = nullptr;   // [R, V], as far apart as logits; only where scores are processed
  int32_t* arrivals = nullptr;  // [B * (K + 1) + classes], 0 before and after, see select.h
  int candidates_of_row = 0;

  StepScratch() = default;
  StepScratch(Arena& a, const Limits& limits) {
    const int64_t each = int64_t{limits.beams} * limits.candidates;
    merge_queue = a.take<KeyedCandidate>("merge_queue", {limits.batch, each});
    candidates = a.take<Candidate>("candidates", {limits.batch, each});
    keys = a.take<float>("keys", {limits.rows(), limits.candidates});
    candidates_of_row = limits.candidates;
  }

  // That of a class of requests on a GPU whose rows begin with `first`, in that of sentences of one
  // row each. stride: of the logits.
  StepScratch of_class(int index, int64_t first, int64_t stride) const {
    StepScratch own = *this;
    own.merge_queue += first * candidates_of_row;
    own.candidates += first * candidates_of_row;
    own.keys += first * candidates_of_row;
    own.perturbed += first * stride;
    own.arrivals += 2 * first + index;
    return own;
  }
};

// What a captured step depends on, beside its sentences' state and config.
struct StepKey {
  int sentences, beams;
  int candidates;  // of a row
  size_t search;   // index of the strategy
  SearchKind kind;
  SelectPart part;
  bool processed, guided, filtered, renormalized, samples;

  auto operator<=>(const StepKey&) const = default;
};

struct StepView {
  const Search* search;
  ConfigView config;
  StepScratch scratch;
  StepKey key;
  int total_rows, vocab;            // total_rows: of the plan
  StepState* host_state = nullptr;  // CUDA: in the host's memory, see select.h

  int rows() const { return key.sentences * key.beams; }
  bool competes() const { return key.kind == SearchKind::beam; }
};

// Whether the lists of a sentence's rows become one before rows are updated.
inline bool merges_rows(const Search& search) {
  return std::holds_alternative<Beam>(search) || std::holds_alternative<Constrained>(search);
}

// sentences: those that the step is made for, at least the active ones.
StepKey step_key(const Request& request, int sentences, SelectPart part);

// Whether the one launch of kernels/search/select.h is the whole of a step's search.
bool is_fused(const Request& request);

}  // namespace decoding
