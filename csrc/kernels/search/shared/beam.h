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
struct Heir {
  float sum;
  int32_t parent, token;  // the slot that it extends, and with what
};

DECODING_EVERYWHERE inline bool is_real(float sum) { return sum > 0.1f * kFillIn; }

// A live sentence.
struct BeamSentence {
  const BeamSearch& s;
  const BeamRules& rules;
  const StepState now;
  int live, sentence;

  DECODING_EVERYWHERE BeamSentence(const BeamSearch& search, int i)
      : s(search), rules(*search.rules), now(*search.now), live(i), sentence(search.live[i]) {}

  DECODING_EVERYWHERE int slot(int beam) const { return sentence * s.beams + beam; }
  DECODING_EVERYWHERE int64_t row(int beam) const { return int64_t{live} * s.beams + beam; }
  // In the trellis: what a beam takes in this step.
  DECODING_EVERYWHERE int64_t at(int beam) const {
    return int64_t{now.number - 1} * s.total_slots + slot(beam);
  }
  DECODING_EVERYWHERE Hypothesis* list() const {
    return s.finished + int64_t{sentence} * rules.capacity;
  }
  DECODING_EVERYWHERE int32_t& count() const { return s.finished_count[sentence]; }

  DECODING_EVERYWHERE Heir heir(const Candidate& c) const {
    return {c.value, slot(c.id / s.vocab), c.id % s.vocab};
  }
  DECODING_EVERYWHERE Extension extension(const Heir& heir) const {
    return {now.number, sentence, heir.parent, heir.token};
  }
  DECODING_EVERYWHERE bool ends(const Heir& heir) const {
    return token_ends(*s.ends, extension(heir), s.total_slots, s.vocab);
  }
  DECODING_EVERYWHERE bool is_last_step() const {
    return decoding::is_last_step(*s.ends, s.sentences[sentence], now.number);
  }

  // What sums are divided by, in double precision and then rounded, as Python and torch do.
  DECODING_EVERYWHERE float divisor(int tokens) const {
    const bool gnmt = rules.normalization == LengthNormalization::gnmt;
    return static_cast<float>(pow(gnmt ? (5.0 + tokens) / 6.0 : tokens, rules.length_penalty));
  }

  DECODING_EVERYWHERE Hypothesis hypothesis(const Heir& end) const {
    const float score = end.sum / divisor(now.number);
    // What stems from a fill-in stays as bad as one, however long it is.
    return {is_real(end.sum) || score < end.sum ? score : end.sum, end.sum, now.number, end.parent,
            end.token};
  }

  // Stores the beam of the next step.
  DECODING_EVERYWHERE void extend(int beam, const Heir& heir) const {
    s.tokens[at(beam)] = heir.token;
    s.parents[at(beam)] = heir.parent;
    s.sums[slot(beam)] = heir.sum;
    if (s.ends->stop_table == nullptr) return;
    // A beam that goes on has matched nothing; one that idles (diverse.h) must not either.
    const int state = stop_state(*s.ends, extension(heir), s.total_slots, s.vocab);
    s.ends->stop_states[at(beam)] = state < 0 ? 0 : state;
  }

  // Fill-ins follow the `alive` first.
  DECODING_EVERYWHERE void fill_beams(int first, int alive, int end) const {
    for (int beam = alive; beam < end; ++beam) {
      extend(beam, {kFillIn, s.parents[at(first)], s.tokens[at(first)]});
    }
  }

  // True when no row whose sum is now at most `best` can enter a full list, going by the rules of
  // early stopping.
  DECODING_EVERYWHERE bool settled(float best, float worst_finished) const {
    if (rules.early_stopping == EarlyStopping::yes) return true;
    const bool longest = rules.early_stopping == EarlyStopping::never && rules.length_penalty > 0.0;
    return best / divisor(longest ? s.sentences[sentence].max_new : now.number) <= worst_finished;
  }

  // The sentence is done: what its list lacks is filled in.
  DECODING_EVERYWHERE void close() const {
    for (; count() < rules.capacity; ++count()) {
      list()[count()] = {kFillIn, kFillIn, 0, slot(0), 0};
    }
    s.done[sentence] = 1;
  }

  // Closes the sentence where its logits were not finite.
  DECODING_EVERYWHERE bool faulty() const {
    bool finite = true;
    for (int beam = 0; beam < s.beams; ++beam) finite &= fabsf(s.lse[row(beam)]) <= FLT_MAX;
    if (!finite) {
      s.fault[sentence] = now.number;
      close();
    }
    return !finite;
  }

  // Shared: `thread` of `threads` takes its part. Where the history of each beam of the next step
  // lies: that of its parent, which wrote the token that this step read.
  DECODING_EVERYWHERE void inherit(int thread, int threads) const {
    const int64_t table = int64_t{s.total_slots} * s.history;
    const int32_t* from = s.slots + now.number % 2 * table;
    int32_t* to = s.slots + (now.number + 1) % 2 * table;
    for (int beam = 0; beam < s.beams; ++beam) {
      const int32_t parent = s.parents[at(beam)];
      const int32_t* old = from + int64_t{parent} * s.history;
      int32_t* history = to + int64_t{slot(beam)} * s.history;
      for (int t = thread; t < now.position; t += threads) history[t] = old[t];
      if (thread == 0) history[now.position] = parent;
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
  // Keeps an heir among the first, by descending sum, behind its equals.
  const auto rank = [&](int at, Candidate heir) {
    for (; at > 0 && candidates[at - 1].value < heir.value; --at)
      candidates[at] = candidates[at - 1];
    candidates[at] = heir;
  };
  int alive = 0;
  for (int c = 0; c < p.m && candidates[c].id >= 0 && (p.drawn || alive < beams); ++c) {
    const Candidate candidate = candidates[c];
    const Heir heir = sentence.heir(candidate);
    const bool host_ends = p.ended != nullptr && p.ended[int64_t{i} * p.m + c] != 0;
    if (host_ends || sentence.is_last_step() || sentence.ends(heir)) {
      if (c >= beams) continue;
      insert(sentence.list(), sentence.count(), sentence.rules.capacity, sentence.hypothesis(heir));
    } else if (alive < beams) {
      rank(alive++, candidate);  // alive <= c: in the place of what has been read
    } else if (candidate.value > candidates[alive - 1].value) {
      rank(alive - 1, candidate);
    }
  }
  for (int beam = 0; beam < alive; ++beam) sentence.extend(beam, sentence.heir(candidates[beam]));
  if (alive > 0) sentence.fill_beams(0, alive, beams);
  const int capacity = sentence.rules.capacity;
  if (alive == 0 || (sentence.count() == capacity &&
                     sentence.settled(candidates[0].value, sentence.list()[capacity - 1].score))) {
    sentence.close();
    return false;
  }
  return true;
}

}  // namespace decoding
