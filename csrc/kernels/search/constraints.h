// The words that a row must hold: phrases, in any order and without overlap, of each of them one of
// its alternatives, token after token. A phrase is a tree of tokens, whose leaves end alternatives.
//
// A row's progress is kProgress + phrases numbers: the phrase under way, where it stands in that
// phrase's tree, and the phrases not yet begun, in the order in which they are looked at. One that
// is given up goes to the end of those. The rules are those of Hugging Face's transformers 4.
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace decoding {

// Node p is the root of phrase p; edge e leads to node count + e.
struct Phrases {
  const int32_t* depths;      // [count], tokens of each one's longest alternative
  const int32_t* first_edge;  // [nodes + 1], a node's edges follow each other
  const int32_t* tokens;      // [edges]
  int count, longest;         // longest: of the depths
  int most_wanted;            // tokens that bring a row further, at most
};

// Of a row's progress.
enum { kActive, kNode, kSeen, kPending, kProgress };  // kActive: -1 for none; kPending: a count

// What a token makes of a row's progress.
struct Advance {
  int active, node, seen, pending;
  int begun;     // index of the pending phrase that it begins; -1: none
  int given_up;  // phrase; -1: none

  DECODING_EVERYWHERE bool complete() const { return active < 0 && pending == 0; }

  // Tokens on the way to the end, each phrase counted as long as the longest of all.
  DECODING_EVERYWHERE int bank(const Phrases& phrases) const {
    const int missing = active < 0 ? 0 : phrases.depths[active] - seen;
    return (phrases.count - pending) * phrases.longest - missing;
  }
};

DECODING_EVERYWHERE inline bool is_complete(const int32_t* progress) {
  return progress[kActive] < 0 && progress[kPending] == 0;
}

// Calls use(token) for all that bring the row further.
template <typename Use>
DECODING_EVERYWHERE void for_wanted(const Phrases& phrases, const int32_t* progress, Use&& use) {
  const auto edges_of = [&](int node) {
    for (int e = phrases.first_edge[node]; e < phrases.first_edge[node + 1]; ++e) {
      use(phrases.tokens[e]);
    }
  };
  if (progress[kActive] >= 0) return edges_of(progress[kNode]);
  for (int i = 0; i < progress[kPending]; ++i) edges_of(progress[kProgress + i]);
}

DECODING_EVERYWHERE inline Advance advanced(const Phrases& phrases, const int32_t* progress,
                                            int token) {
  Advance next{progress[kActive], progress[kNode], progress[kSeen], progress[kPending], -1, -1};
  // Goes on from `node` where the token does.
  const auto go_on = [&](int phrase, int node) {
    for (int e = phrases.first_edge[node]; e < phrases.first_edge[node + 1]; ++e) {
      if (phrases.tokens[e] != token) continue;
      const int to = phrases.count + e;
      const bool is_leaf = phrases.first_edge[to] == phrases.first_edge[to + 1];
      next.active = is_leaf ? -1 : phrase;
      next.node = to;
      ++next.seen;
      return true;
    }
    return false;
  };
  if (next.active >= 0) {
    if (!go_on(next.active, next.node)) {
      next.given_up = next.active;  // the token begins no other one either
      next.active = -1;
      ++next.pending;
    }
    return next;
  }
  next.seen = 0;
  for (int i = 0; i < progress[kPending]; ++i) {
    const int phrase = progress[kProgress + i];
    if (go_on(phrase, phrase)) {
      next.begun = i;
      --next.pending;
      break;
    }
  }
  return next;
}

// The progress of the row behind the token. to: may be `progress`.
DECODING_EVERYWHERE inline void advance(const int32_t* progress, const Advance& next, int32_t* to) {
  int count = 0;
  for (int i = 0; i < progress[kPending]; ++i) {
    if (i != next.begun) to[kProgress + count++] = progress[kProgress + i];
  }
  if (next.given_up >= 0) to[kProgress + count++] = next.given_up;
  to[kActive] = next.active;
  to[kNode] = next.node;
  to[kSeen] = next.seen;
  to[kPending] = count;
}

// The progress of a row that consists of `tokens`.
inline void begin_progress(const Phrases& phrases, const int32_t* tokens, int count, int32_t* to) {
  to[kActive] = -1;
  to[kNode] = to[kSeen] = 0;
  to[kPending] = phrases.count;
  for (int i = 0; i < phrases.count; ++i) to[kProgress + i] = i;
  for (int t = 0; t < count; ++t) advance(to, advanced(phrases, to, tokens[t]), to);
}

}  // namespace decoding
