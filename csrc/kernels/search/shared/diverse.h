// What a step of group diverse beam search (diverse.h) does with one group of a sentence: one text
// for both devices, see beam.h.
#pragma once

#include "kernels/search/diverse.h"
#include "kernels/search/shared/beam.h"
#include "kernels/search/shared/processors.h"

namespace decoding {

template <typename T>
struct BeamGroup {
  const DiverseStepParams<T>& p;
  const BeamSentence& sentence;
  int size, first, index;

  DECODING_EVERYWHERE BeamGroup(const DiverseStepParams<T>& params, const BeamSentence& of, int n)
      : p(params),
        sentence(of),
        size(of.s.beams / of.s.config.search->groups),
        first(n * size),
        index(of.sentence * of.s.beams + n) {}

  DECODING_EVERYWHERE Hypothesis* list() const { return sentence.list() + first; }
  DECODING_EVERYWHERE int32_t& count() const { return p.group_counts[index]; }
  DECODING_EVERYWHERE bool stopped() const { return count() == kGroupStopped; }

  // What the sentence's beams take in this step: those of earlier groups are known.
  DECODING_EVERYWHERE const int32_t* taken() const { return sentence.s.tokens + sentence.at(0); }

  DECODING_EVERYWHERE float cost(int token) const {
    int times = 0;
    for (int beam = 0; beam < first; ++beam) times += taken()[beam] == token;
    return times * sentence.config.beam.group_penalty;
  }

  DECODING_EVERYWHERE bool is_forced() const {
    return sentence.config.forces(sentence.active.number);
  }

  // Candidates stand in places: of each beam its best, then what earlier groups have taken.
  DECODING_EVERYWHERE int places() const { return size * (p.k + first); }

  // id -1 where nothing stands in a place.
  template <typename ToFloat>
  DECODING_EVERYWHERE Candidate candidate(int place, ToFloat&& to_float) const {
    const int beam = first + place / (p.k + first), c = place % (p.k + first);
    const int64_t row = sentence.row(beam);
    const float sum = sentence.s.sums[sentence.slot(beam)];
    if (c < p.k) {
      const Candidate next = p.best[row * p.k + c];
      if (next.id < 0) return next;
      const float lse = p.lse != nullptr ? p.lse[row] : 0.0f, less = cost(next.id);
      if (less > 0.0f && p.processors != nullptr) return {-INFINITY, -1};  // stands further behind
      const float score = next.value - lse;
      return {sum + (less == 0.0f || is_forced() ? score : score - less),
              beam * sentence.s.vocab + next.id};
    }
    const int other = c - p.k, token = taken()[other];
    bool again = p.processors == nullptr;
    for (int b = 0; b < other; ++b) again |= taken()[b] == token;
    if (again) return {-INFINITY, -1};
    const float score = reprocess(*p.processors, processed_row(*p.processors, row), row, token,
                                  cost(token), to_float);
    return {sum + score, score > -INFINITY ? beam * sentence.s.vocab + token : -1};
  }

  // Takes in the best candidates of the group: candidate(c) is the c-th.
  template <typename Best>
  DECODING_EVERYWHERE void choose(int candidates, Best&& candidate) const {
    int alive = 0;
    for (int c = 0; c < candidates && alive < size; ++c) {
      const NextBeam next_beam = sentence.next_beam(candidate(c));
      if (!sentence.ends(next_beam)) {
        sentence.extend(first + alive++, next_beam);
      } else if (c < size) {
        insert(list(), count(), size, sentence.hypothesis(next_beam));
      }
    }
    if (alive == 0) return give_up();
    sentence.fill_beams(first, first + alive, first + size);
    if (count() == size && sentence.cannot_improve(candidate(0).value, list()[size - 1].score)) {
      count() = kGroupStopped;
    } else if (sentence.is_last_step()) {
      finish_all();
    }
  }

  // Nothing can follow.
  DECODING_EVERYWHERE void give_up() const {
    for (; count() < size; ++count()) {
      list()[count()] = {kFillIn, kFillIn, 0, sentence.slot(first), 0};
    }
    count() = kGroupStopped;
    idle();
  }

  // The beams that go on finish as they are.
  DECODING_EVERYWHERE void finish_all() const {
    for (int beam = first; beam < first + size; ++beam) {
      const int64_t at = sentence.at(beam);
      const BeamSearch& s = sentence.s;
      const NextBeam next_beam{s.sums[sentence.slot(beam)], s.parents[at], s.tokens[at]};
      insert(list(), count(), size, sentence.hypothesis(next_beam));
    }
    count() = kGroupStopped;
  }

  DECODING_EVERYWHERE void idle() const {
    for (int beam = first; beam < first + size; ++beam) {
      sentence.extend(beam, {kFillIn, sentence.slot(beam), sentence.config.pad});
    }
  }
};

// Behind the groups' steps: whether beams go on. Where none does, the lists become one.
template <typename T>
DECODING_EVERYWHERE bool merge_groups(const DiverseStepParams<T>& p, const BeamSentence& sentence) {
  for (int n = 0; n < sentence.s.config.search->groups; ++n) {
    if (!BeamGroup<T>(p, sentence, n).stopped()) return true;
  }
  const int beams = sentence.s.beams;
  for (int32_t rows = 0; rows < beams;) {
    const Hypothesis next = sentence.list()[rows];
    insert(sentence.list(), rows, beams, next);
  }
  sentence.count() = beams;
  sentence.s.done[sentence.sentence] = 1;
  return false;
}

}  // namespace decoding
