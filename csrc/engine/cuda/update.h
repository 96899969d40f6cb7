// The searches that are more than one launch on a GPU: what is picked is taken in by kernels of its
// own.
#pragma once

#include "engine/cuda/select.h"
#include "engine/search/update.h"
#include "kernels/search/gumbel_topk.h"

namespace decoding {

inline bool draws(const Search& search) {
  const auto* beam = std::get_if<Beam>(&search);
  return beam != nullptr && beam->draws;
}

// Whether the launch of kernels/search/select.h is the whole of a search's step.
inline bool is_fused(const Search& search, int beams) {
  if (const auto* beam = std::get_if<Beam>(&search)) {
    return !beam->draws && beam->normalization == LengthNormalization::power &&
           beam->places(beams) == beams && beam->diversity_rate == 0.0f;
  }
  return std::holds_alternative<Greedy>(search) || std::holds_alternative<Sampling>(search);
}

template <typename T>
AcceptStep accept_step(const Workspace<T>& w, const CudaSearch& search, const CudaStep& step,
                       const uint8_t* ended) {
  return {.now = w.inputs.state,
          .ends = search.rules.ends(),
          .rules = search.rules.beam(),
          .alpha = w.alpha,
          .candidates = search.candidates,
          .contenders = search.contenders,
          .ended = ended,
          .processed = step.processed,
          .sentences = step.sentences,
          .beams = step.beams,
          .m = step.candidates,
          .slots = step.slots,
          .vocab = step.vocab,
          .pad = step.pad,
          .seen = step.seen};
}

// From the logits or scores to what may follow; in one launch all that there is to do.
template <typename T>
void pick(cuda::Stream& stream, const Workspace<T>& w, const CudaSearch& search,
          const CudaStep& step) {
  if (step.draws) {
    draw_candidates(stream, {.scores = w.scores,
                             .sums = w.inputs.sums,
                             .own = w.inputs.rules,
                             .now = w.inputs.state,
                             .live = w.inputs.live,
                             .best = w.best,
                             .keys = search.keys,
                             .perturbed = search.perturbed,
                             .sentences = step.sentences,
                             .beams = step.beams,
                             .m = step.candidates,
                             .vocab = step.vocab,
                             .stride = w.logits_stride});
  } else if (step.processed) {
    select(stream, w.scores, w, search, step);
  } else {
    select(stream, w.logits, w, search, step);
  }
  const bool merges = std::holds_alternative<Beam>(*step.search) ||
                      std::holds_alternative<Constrained>(*step.search);
  if (step.part != SelectPart::pick || !merges) return;
  merge(stream, w, accept_step(w, search, step, nullptr), step.draws ? search.keys : nullptr);
}

// Takes in what has been picked. ended: see AcceptStep.
template <typename T>
void accept(cuda::Stream& stream, const Workspace<T>& w, const CudaSearch& search,
            const CudaStep& step, const uint8_t* ended) {
  accept_picked(stream, *step.search, w, accept_step(w, search, step, ended),
                process_params(w, search, step, kBefore | kMiddle));
}

}  // namespace decoding
