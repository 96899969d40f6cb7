// What the kernels over logits share: sums over a group of columns (logits.h), and the search for
// large elements through the maxima of the groups (topk.h).
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

// NaN is passed over; the sum below shows it.
inline float largest(const Group& group) {
  Floats value = broadcast(-INFINITY);
  for (int c = 0; c < kGroup; c += kLanes) value = max(load(group.columns + c), value);
  return max_of(value);
}

// Sum of exp(scale * x - peak).
inline float sum_exp(const Group& group, float scale, float peak) {
  Floats sum = {};
  for (int c = 0; c < kGroup; c += kLanes) {
    sum += exp(fma(scale, load(group.columns + c), broadcast(-peak)));
  }
  return sum_of(sum);
}

// Queues the elements that reach the k-th largest group maximum, by ascending id: the k best are
// among them, -inf and NaN never are. Returns how many there are. queue: [V], maxima: [G], scratch.
inline int queue_best(const float* row, const float* group_max, int vocab, int k, float* maxima,
                      Candidate* queue) {
  const int groups = groups_of(vocab);
  float bound = -FLT_MAX;
  if (k < groups) {
    std::copy(group_max, group_max + groups, maxima);
    std::nth_element(maxima, maxima + k - 1, maxima + groups, Higher());
    bound = std::max(bound, maxima[k - 1]);
  }
  int queued = 0;
  for (int g = 0; g < groups; ++g) {
    if (group_max[g] < bound) continue;
    const int end = std::min(vocab, (g + 1) * kGroup);
    for (int id = g * kGroup; id < end; ++id) {
      queue[queued] = {row[id], id};  // never behind the last element: queued <= id
      queued += row[id] >= bound;
    }
  }
  return queued;
}

}  // namespace
}  // namespace decoding::cpu
