// What a step of contrastive search (contrastive.h) does with a sentence: one text for both
// devices, see beam.h.
#pragma once

#include "kernels/search/contrastive.h"
#include "kernels/search/shared/beam.h"

namespace decoding {

// The row whose token goes on: of the first step any, as all have read the same.
DECODING_EVERYWHERE inline int chosen_row(const ContrastStepParams& p,
                                          const BeamSentence& sentence) {
  if (sentence.active.number == 1) return 0;
  const float alpha = sentence.config.alpha;
  int chosen = 0;
  float best = -INFINITY;
  for (int beam = 0; beam < p.search.beams; ++beam) {
    const float probability = p.search.sums[sentence.slot(beam)];
    const float score = (1.0f - alpha) * probability - alpha * p.similarity[sentence.row(beam)];
    if (score > best) {
      best = score;
      chosen = beam;
    }
  }
  return chosen;
}

// All but the histories; returns whether the sentence goes on.
DECODING_EVERYWHERE inline bool contrast_sentence(const ContrastStepParams& p, int i) {
  const BeamSentence sentence(p.search, i);
  const BeamSearch& s = p.search;
  const int before = sentence.active.number - 1, chosen = chosen_row(p, sentence);
  const int64_t row = sentence.row(chosen);
  if (!(fabsf(p.lse[row]) <= FLT_MAX)) {
    s.fault[sentence.sentence] = sentence.active.number;
    sentence.close();
    return false;
  }
  if (before > 0) {
    const int64_t at = int64_t{before - 1} * s.total_rows + sentence.slot(chosen);
    const Extension token = {before, sentence.sentence, s.parents[at], s.tokens[at]};
    if (row_ends(sentence.ending(), token, s.total_rows, s.vocab)) {
      sentence.list()[0] = {0.0f, 0.0f, before, token.parent, token.token};
      sentence.count() = 1;
      sentence.close();
      return false;
    }
  }
  for (int beam = 0; beam < s.beams; ++beam) {
    const Candidate next = p.best[row * s.beams + beam];
    const int parent = sentence.slot(chosen);
    // One that nothing is left for stands for the first, and never wins.
    const bool is_none = next.id < 0;
    sentence.extend(beam, {is_none ? -INFINITY : expf(next.value - p.lse[row]), parent,
                           is_none ? s.tokens[sentence.at(0)] : next.id});
  }
  return true;
}

}  // namespace decoding
