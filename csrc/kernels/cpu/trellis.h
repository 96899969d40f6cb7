// What the steps of all beam searches do with a sentence (beam.h): rows enter the finished list,
// beams go on, the search stops.
//
// In an anonymous namespace for the same reason as simd.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/beam.h"
#include "kernels/cpu/ends.h"

namespace decoding::cpu {
namespace {

inline bool ahead(const Contender& a, const Contender& b) {
  return a.key != b.key ? a.key > b.key : a.candidate.id < b.candidate.id;
}

// A beam of the next step.
struct Heir {
  float sum;
  int32_t parent, token;  // the slot that it extends, and with what
};

// What sums are divided by, in double precision and then rounded, as Python and torch do.
inline float divisor(const BeamSearch& s, int tokens) {
  const bool gnmt = s.normalization == LengthNormalization::gnmt;
  return static_cast<float>(std::pow(gnmt ? (5.0 + tokens) / 6.0 : tokens, s.length_penalty));
}

inline Hypothesis hypothesis(const BeamSearch& s, const Heir& end) {
  const float score = end.sum / divisor(s, s.now.number);
  // What stems from a fill-in stays as bad as one, however long it is.
  const bool filled_in = end.sum <= 0.1f * kFillIn;
  return {filled_in ? std::min(end.sum, score) : score, end.sum, s.now.number, end.parent,
          end.token};
}

// Puts a row into a list, best first, behind its equals; the best stay.
inline void insert(Hypothesis* list, int& count, int capacity, const Hypothesis& row) {
  int at = count;
  while (at > 0 && list[at - 1].score < row.score) --at;
  if (at == capacity) return;
  count = std::min(count + 1, capacity);
  std::copy_backward(list + at, list + count - 1, list + count);
  list[at] = row;
}

inline void fill_in(Hypothesis* list, int count, int capacity, int slot) {
  std::fill(list + count, list + capacity, Hypothesis{kFillIn, kFillIn, 0, slot, 0});
}

// Stores the beam of the next step that lies in `slot`.
inline void extend(const BeamSearch& s, int sentence, int slot, const Heir& heir) {
  const int64_t at = int64_t{s.now.number - 1} * s.total_slots + slot;
  s.tokens[at] = heir.token;
  s.parents[at] = heir.parent;
  s.sums[slot] = heir.sum;
  if (s.ends.stop_table != nullptr) {
    const Extension to{s.now.number, sentence, heir.parent, heir.token};
    // A beam that goes on has matched nothing; one that idles (diverse.h) must not either.
    s.ends.stop_states[at] = std::max(0, stop_state(s.ends, to, s.total_slots, s.vocab));
  }
  int32_t* history = s.next_slots + int64_t{slot} * s.history;
  std::memcpy(history, s.slots + int64_t{heir.parent} * s.history,
              sizeof(int32_t) * s.now.position);
  history[s.now.position] = heir.parent;  // it wrote the token that this step read
}

// True when no row whose sum is now at most `best` can enter a full list, going by the rules of
// early stopping.
inline bool settled(const BeamSearch& s, int sentence, float best, float worst_finished) {
  if (s.early_stopping == EarlyStopping::yes) return true;
  const bool longest = s.early_stopping == EarlyStopping::never && s.length_penalty > 0.0;
  const int tokens = longest ? s.sentences[sentence].max_new : s.now.number;
  return best / divisor(s, tokens) <= worst_finished;
}

// The sentence is done: what its list lacks is filled in.
inline void close(const BeamSearch& s, int sentence) {
  fill_in(s.finished + int64_t{sentence} * s.capacity, s.finished_count[sentence], s.capacity,
          sentence * s.beams);
  s.finished_count[sentence] = s.capacity;
  s.done[sentence] = 1;
}

// Closes live sentence i where its logits were not finite.
inline bool faulty(const BeamSearch& s, int i) {
  const auto finite = [](float lse) { return std::isfinite(lse); };
  const float* lse = s.lse + int64_t{i} * s.beams;
  if (std::all_of(lse, lse + s.beams, finite)) return false;
  s.fault[s.live[i]] = s.now.number;
  close(s, s.live[i]);
  return true;
}

}  // namespace
}  // namespace decoding::cpu
