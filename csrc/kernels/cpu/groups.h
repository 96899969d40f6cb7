// Groups of columns (kernels/search/logits.h), and the search for elements through the maxima of
// the groups (kernels/search/topk.h), for all kernels over logits.
//
// In an anonymous namespace for the same reason as simd.h.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/cpu/simd.h"
#include "kernels/search/logits.h"
#include "kernels/search/topk.h"

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

// The group's maximum, and the sum of exponentials relative to it; 0 where the whole group is -inf.
inline void scan(const Group& group, float& group_max, float& group_sum) {
  group_max = largest(group);
  // -inf - -inf would be NaN; with any other peak, exp(-inf) is the 0 that it should be.
  const float peak = group_max == -INFINITY ? 0.0f : group_max;
  Floats sum = {};
  for (int c = 0; c < kGroup; c += kLanes) sum += exp_not_above_0(load(group.columns + c) - peak);
  group_sum = sum_of(sum);
}

// Of a row. Each lane adds every kLanes-th group; then the lanes are added up.
inline float log_sum_exp(const float* group_max, const float* group_sum, int groups) {
  float peak = -INFINITY;
  for (int g = 0; g < groups; ++g) peak = std::max(peak, group_max[g]);
  if (peak == -INFINITY) peak = 0.0f;
  Floats sum = {};
  for (int g = 0; g < groups; g += kLanes) {
    const int count = std::min(groups - g, kLanes);
    const bool whole = count == kLanes;
    const Floats max = whole ? load(group_max + g) : load(group_max + g, count);
    const Floats part = whole ? load(group_sum + g) : load(group_sum + g, count);
    const Floats scaled = part * exp(max - peak);
    sum += lane_ids() < count ? scaled : Floats{};
  }
  return peak + std::log(sum_of(sum));
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
      queue[queued] = {row[id], id};  // never after the queue's end: queued <= id
      queued += (row[id] >= low) & (row[id] <= high);
    }
  }
  return queued;
}

}  // namespace
}  // namespace decoding::cpu
