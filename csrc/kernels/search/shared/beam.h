// What a step of a beam search (beam.h) does with a sentence: rows enter the finished list, beams
// go on, the search stops. One text for both devices; on a GPU one thread of a block follows it,
// and all of them do only what is said to be shared.
#pragma once

#include <cfloat>
#include <cmath>

#include "core/philox.h"
#include "kernels/search/beam.h"
#include "kernels/search/shared/stop.h"

namespace decoding {

// A beam of the next step.
struct NextBeam {
  float sum;
  int32_t parent, token;  // the slot that it extends, and with what
};

DECODING_EVERYWHERE inline bool is_real(float sum) { return sum > 0.1f * kFillIn; }

// Active sentence `index`.
struct BeamSentence {
  const BeamSearch& s;
  const ActiveSentence active;
  const SentenceConfig& config;
  int index, sentence;  // sentence: its id

  DECODING_EVERYWHERE BeamSentence(const BeamSearch& search, int i)
      : s(search),
        active(search.active[i]),
        config(search.config.sentences[active.id]),
        index(i),
        sentence(active.id) {}

  DECODING_EVERYWHERE int max_finished() const { return s.config.search->max_finished; }
  DECODING_EVERYWHERE Ends ending() const { return {s.config, config, s.stop, sentence}; }

  DECODING_EVERYWHERE int slot(int beam) const { return sentence * s.beams + beam; }
  DECODING_EVERYWHERE int64_t row(int beam) const { return int64_t{index} * s.beams + beam; }
  // In the history: the token that a beam takes in this step.
  DECODING_EVERYWHERE int64_t at(int beam) const {
    return int64_t{active.number - 1} * s.total_rows + slot(beam);
  }
  DECODING_EVERYWHERE Hypothesis* list() const {
    return s.finished + int64_t{sentence} * max_finished();
  }
  DECODING_EVERYWHERE int32_t& count() const { return s.finished_count[sentence]; }

  DECODING_EVERYWHERE NextBeam next_beam(const Candidate& c) const {
    return {c.value, slot(c.id / s.vocab), c.id % s.vocab};
  }
  DECODING_EVERYWHERE Extension extension(const NextBeam& next_beam) const {
    return {active.number, sentence, next_beam.parent, next_beam.token};
  }
  DECODING_EVERYWHERE bool ends(const NextBeam& next_beam) const {
    return token_ends(ending(), extension(next_beam), s.total_rows, s.vocab);
  }
  DECODING_EVERYWHERE bool is_last_step() const {
    return decoding::is_last_step(ending(), active.number);
  }

  // What sums are divided by, in double precision and then rounded, as Python and torch do.
  DECODING_EVERYWHERE float divisor(int tokens) const {
    const bool gnmt = config.beam.normalization == LengthNormalization::gnmt;
    return static_cast<float>(
        pow(gnmt ? (5.0 + tokens) / 6.0 : tokens, config.beam.length_penalty));
  }

  DECODING_EVERYWHERE Hypothesis hypothesis(const NextBeam& end) const {
    const float score = end.sum / divisor(active.number);
    // What stems from a fill-in stays as bad as one, however long it is.
    return {is_real(end.sum) || score < end.sum ? score : end.sum, end.sum, active.number,
            end.parent, end.token};
  }

  // Stores the beam of the next step.
  DECODING_EVERYWHERE void extend(int beam, const NextBeam& next_beam) const {
    s.tokens[at(beam)] = next_beam.token;
    s.parents[at(beam)] = next_beam.parent;
    s.sums[slot(beam)] = next_beam.sum;
    if (config.stop_table == nullptr) return;
    // A beam that goes on has matched nothing; one that idles (diverse.h) must not either.
    const int stop = stop_state(ending(), extension(next_beam), s.total_rows, s.vocab);
    s.stop.stop_states[at(beam)] = stop < 0 ? 0 : stop;
  }

  // Fill-ins follow the `alive` first.
  DECODING_EVERYWHERE void fill_beams(int first, int alive, int end) const {
    for (int beam = alive; beam < end; ++beam) {
      extend(beam, {kFillIn, s.parents[at(first)], s.tokens[at(first)]});
    }
  }

  // True when no row whose sum is now at most `best` can enter a full list, going by the rules of
  // early stopping.
  DECODING_EVERYWHERE bool cannot_improve(float best, float worst_finished) const {
    if (config.beam.early_stopping == EarlyStopping::yes) return true;
    const bool longest =
        config.beam.early_stopping == EarlyStopping::never && config.beam.length_penalty > 0.0;
    return best / divisor(longest ? config.max_new : active.number) <= worst_finished;
  }

  // The sentence is done: what its list lacks is filled in.
  DECODING_EVERYWHERE void close() const {
    for (; count() < max_finished(); ++count()) {
      list()[count()] = {kFillIn, kFillIn, 0, slot(0), 0};
    }
    s.done[sentence] = 1;
  }

  // Closes the sentence where its logits were not finite.
  DECODING_EVERYWHERE bool faulty() const {
    bool finite = true;
    for (int beam = 0; beam < s.beams; ++beam) finite &= fabsf(s.lse[row(beam)]) <= FLT_MAX;
    if (!finite) {
      s.fault[sentence] = active.number;
      close();
    }
    return !finite;
  }

  // Shared: `thread` of `threads` takes its part. Where the history of each beam of the next step
  // lies: that of its parent, which wrote the token that this step read.
  DECODING_EVERYWHERE void inherit(int thread, int threads) const {
    const int64_t table = int64_t{s.total_rows} * s.history;
    const int32_t* from = s.cache_indirection + active.table() * table;
    int32_t* to = s.cache_indirection + active.next_table() * table;
    for (int beam = 0; beam < s.beams; ++beam) {
      const int32_t parent = s.parents[at(beam)];
      const int32_t* old = from + int64_t{parent} * s.history;
      int32_t* history = to + int64_t{slot(beam)} * s.history;
      for (int t = thread; t < active.position; t += threads) history[t] = old[t];
      if (thread == 0) history[active.position] = parent;
    }
  }
};

// Puts a row into a list, best first, behind its equals; the best stay.
DECODING_EVERYWHERE inline void insert(Hypothesis* list, int32_t& count, int capacity,
                                       const Hypothesis& row) {
  int at = count;
  while (at > 0 && list[at - 1].score < row.score) --at;
  if (at == capacity) return;
  count = count < capacity ? count + 1 : capacity;
  for (int r = count - 1; r > at; --r) list[r] = list[r - 1];
  list[at] = row;
}

// The whole step of a plain beam search but for the histories; returns whether beams go on.
DECODING_EVERYWHERE inline bool step_sentence(const BeamStepParams& p, int i) {
  const BeamSentence sentence(p.search, i);
  if (sentence.faulty()) return false;
  const int beams = p.search.beams;
  Candidate* candidates = p.candidates + int64_t{i} * p.m;
  // Keeps an next_beam among the first, by descending sum, behind its equals.
  const auto rank = [&](int at, Candidate next_beam) {
    for (; at > 0 && candidates[at - 1].value < next_beam.value; --at)
      candidates[at] = candidates[at - 1];
    candidates[at] = next_beam;
  };
  int alive = 0;
  for (int c = 0; c < p.m && candidates[c].id >= 0 && (p.sampled || alive < beams); ++c) {
    const Candidate candidate = candidates[c];
    const NextBeam next_beam = sentence.next_beam(candidate);
    const bool host_ends = p.ended != nullptr && p.ended[int64_t{i} * p.m + c] != 0;
    if (host_ends || sentence.is_last_step() || sentence.ends(next_beam)) {
      if (c >= beams) continue;
      insert(sentence.list(), sentence.count(), sentence.max_finished(),
             sentence.hypothesis(next_beam));
    } else if (alive < beams) {
      rank(alive++, candidate);  // alive <= c: in the place of what has been read
    } else if (candidate.value > candidates[alive - 1].value) {
      rank(alive - 1, candidate);
    }
  }
  for (int beam = 0; beam < alive; ++beam)
    sentence.extend(beam, sentence.next_beam(candidates[beam]));
  if (alive > 0) sentence.fill_beams(0, alive, beams);
  const int max_finished = sentence.max_finished();
  if (alive == 0 ||
      (sentence.count() == max_finished &&
       sentence.cannot_improve(candidates[0].value, sentence.list()[max_finished - 1].score))) {
    sentence.close();
    return false;
  }
  return true;
}

}  // namespace decoding
