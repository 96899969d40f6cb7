// What the kernels over logits share: groups of columns (logits.h), and the search for elements
// through the maxima of the groups (topk.h).
//
// In an anonymous namespace for the same reason as simd.h.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/cpu/simd.h"
#include "kernels/logits.h"
#include "kernels/topk.h"

namespace decoding::cpu {
namespace {

static_assert(kGroup % kLanes == 0);

struct Better {
  bool operator()(const Candidate& a, const Candidate& b) const { return better(a, b); }
};

struct Higher {
  bool operator()(float a, float b) const { return a > b; }
};

// A row's group, whole: one that is cut off by the row's end is copied, and ends in -inf.
struct Group {
  Group(const float* row, int vocab, int g) : columns(row + int64_t{g} * kGroup) {
    const int count = vocab - g * kGroup;
    if (count >= kGroup) return;
    std::fill(padded, padded + kGroup, -INFINITY);
    std::copy(columns, columns + count, padded);
    columns = padded;
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const float* columns;  // [kGroup]
  alignas(64) float padded[kGroup];
};

// NaN is passed over.
inline float largest(const Group& group) {
  Floats value = broadcast(-INFINITY);
  for (int c = 0; c < kGroup; c += kLanes) value = max(load(group.columns + c), value);
  return max_of(value);
}

// A bound that the k best elements of a row reach, read off the maxima of its groups; -FLT_MAX
// where they prove none. maxima: [G], scratch.
inline float bound_of_best(const float* group_max, int vocab, int k, float* maxima) {
  const int groups = groups_of(vocab);
  if (k >= groups) return -FLT_MAX;
  std::copy(group_max, group_max + groups, maxima);
  std::nth_element(maxima, maxima + k - 1, maxima + groups, Higher());
  return std::max(-FLT_MAX, maxima[k - 1]);
}

// Queues the elements from `low` to `high`, both included, by ascending id; returns how many there
// are. queue: [V].
inline int queue_between(float low, float high, const float* row, const float* group_max, int vocab,
                         Candidate* queue) {
  int queued = 0;
  for (int g = 0; g < groups_of(vocab); ++g) {
    if (group_max[g] < low) continue;
    const int end = std::min(vocab, (g + 1) * kGroup);
    for (int id = g * kGroup; id < end; ++id) {
      queue[queued] = {row[id], id};  // never behind the queue's end: queued <= id
      queued += (row[id] >= low) & (row[id] <= high);
    }
  }
  return queued;
}

}  // namespace
}  // namespace decoding::cpu
