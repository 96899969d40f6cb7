// What sampling leaves of each row, rows shared over the threads. The contract is in filters.h.
//
// All filters but typical_p keep a prefix of the tokens, best first, and typical_p one of its own
// order; so each comes down to the last token that it keeps. Groups of which nothing is left are
// not read again: behind a top_k the others cost little.
#include "kernels/search/filters.h"

#include <algorithm>
#include <cfloat>
#include <climits>
#include <cmath>
#include <numeric>

#include "kernels/cpu/groups.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace {

using cpu::Better;
using cpu::Floats;
using cpu::kLanes;

constexpr int kTopHTokens = 100;                 // that top_h looks at
constexpr int kBins = 2048;                      // of keys, from the best one on
constexpr float kReach = 32.0f;                  // of the bins; the last one takes what lies beyond
constexpr Candidate kAll = {-FLT_MAX, INT_MAX};  // behind every finite score

struct Row {
  float* scores;     // [V]
  float* group_max;  // [G]
  Candidate* queue;  // [V], scratch
  float* maxima;     // [G], scratch
  int vocab;

  int groups() const { return groups_of(vocab); }
  float peak() const { return *std::max_element(group_max, group_max + groups()); }
};

// Calls use(first id, scores [kGroup]) for the groups of which something is left; behind the row's
// end scores are -inf.
template <typename Use>
void for_what_is_left(const Row& row, Use&& use) {
  for (int g = 0; g < row.groups(); ++g) {
    if (row.group_max[g] == -INFINITY) continue;
    const cpu::Group group(row.scores, row.vocab, g);
    use(g * kGroup, group.columns);
  }
}

void divide_by(float temperature, const Row& row) {
  if (temperature != 1.0f) {
    for (int id = 0; id < row.vocab; ++id) row.scores[id] /= temperature;
  }
  for (int g = 0; g < row.groups(); ++g) {
    row.group_max[g] = cpu::largest(cpu::Group(row.scores, row.vocab, g));
  }
}

// Takes out what comes behind `last` when tokens are ordered by key(score).
template <typename Key>
void keep_through(Candidate last, const Row& row, Key&& key) {
  for (int g = 0; g < row.groups(); ++g) {
    if (row.group_max[g] == -INFINITY) continue;
    float highest = -INFINITY;
    const int begin = g * kGroup, end = std::min(row.vocab, begin + kGroup);
    for (int id = begin; id < end; ++id) {
      const float value = key(row.scores[id]);
      const bool stays = (value > last.value) | ((value == last.value) & (id <= last.id));
      row.scores[id] = stays ? row.scores[id] : -INFINITY;
      highest = std::max(highest, row.scores[id]);
    }
    row.group_max[g] = highest;
  }
}

void keep_through(Candidate last, const Row& row) {
  keep_through(last, row, [](float score) { return score; });
}

// Queues, unordered, at least the k best finite tokens; returns how many it queued.
int queue_best(int k, const Row& row) {
  const float bound = cpu::bound_of_best(row.group_max, row.vocab, k, row.maxima);
  return cpu::queue_between(bound, INFINITY, row.scores, row.group_max, row.vocab, row.queue);
}

// The k-th best; kAll where there are fewer.
Candidate kth_best(int k, const Row& row) {
  const int queued = queue_best(k, row);
  if (queued < k) return kAll;
  std::nth_element(row.queue, row.queue + k - 1, row.queue + queued, Better());
  return row.queue[k - 1];
}

Candidate with_ties(Candidate last) { return {last.value, INT_MAX}; }

Candidate worse(const Candidate& a, const Candidate& b) { return better(a, b) ? b : a; }

// The softmax of what is left, relative to the peak.
struct Softmax {
  double sum = 0.0;     // of w = exp(x - peak)
  double moment = 0.0;  // of w (x - peak)
  float peak;

  explicit Softmax(const Row& row) : peak(row.peak()) {
    for_what_is_left(row, [this](int, const float* scores) {
      Floats weights = {}, moments = {};
      for (int c = 0; c < kGroup; c += kLanes) {
        const Floats z = cpu::load(scores + c) - peak, weight = cpu::exp(z);
        weights += weight;
        moments += weight > 0.0f ? weight * z : Floats{};  // 0 times -inf would be NaN
      }
      sum += cpu::sum_of(weights);
      moment += cpu::sum_of(moments);
    });
  }
  double mean() const { return peak + moment / sum; }
  double entropy() const { return std::log(sum) - moment / sum; }
  double weight(float score) const { return std::exp(score - peak); }
};

// The end of the shortest best-first prefix of a queue with a mass of `target`, where `before`
// precedes it; kAll where the queue is empty. A search for its length by halves, each putting the
// better half in front.
Candidate end_of_prefix(Candidate* queue, int queued, double before, double target,
                        const Softmax& softmax, const Row& row) {
  if (queued == 0) return kAll;
  int begin = 0, end = queued;  // the prefix is longer than begin, and end at most
  while (end - begin > 1) {
    const int middle = begin + (end - begin) / 2;
    std::nth_element(queue + begin, queue + middle, queue + end, Better());
    double through = before;
    for (int i = begin; i < middle; ++i) through += softmax.weight(row.scores[queue[i].id]);
    if (through >= target) {
      end = middle;
    } else {
      begin = middle;
      before = through;
    }
  }
  return queue[begin];
}

// The end of the shortest prefix with a share p of the mass, in falling order of key(score), which
// `top` bounds. Masses are added up in bins of keys, so that only the tokens of one are queued.
template <typename Key>
Candidate end_of_mass(float p, const Softmax& softmax, const Row& row, float top, Key&& key) {
  const auto bin_of = [=](float score) {
    const float distance = (top - key(score)) * (kBins / kReach);
    return distance < kBins - 1 ? static_cast<int>(distance) : kBins - 1;
  };
  double bins[kBins] = {};
  for_what_is_left(row, [&](int, const float* scores) {
    float weights[kGroup];
    for (int c = 0; c < kGroup; c += kLanes) {
      cpu::store(weights + c, cpu::exp(cpu::load(scores + c) - softmax.peak));
    }
    for (int i = 0; i < kGroup; ++i) bins[bin_of(scores[i])] += weights[i];
  });
  const double target = p * std::accumulate(bins, bins + kBins, 0.0);
  int bin = 0;
  double before = 0.0;
  while (bin < kBins - 1 && before + bins[bin] < target) before += bins[bin++];

  int queued = 0;
  for_what_is_left(row, [&](int first, const float* scores) {
    for (int i = 0; i < kGroup; ++i) {
      if (bin_of(scores[i]) != bin || !(scores[i] > -INFINITY)) continue;
      row.queue[queued++] = {key(scores[i]), first + i};
    }
  });
  return end_of_prefix(row.queue, queued, before, target, softmax, row);
}

void apply_top_h(float h, const Row& row) {
  const int queued = queue_best(kTopHTokens, row), count = std::min(queued, kTopHTokens);
  std::partial_sort(row.queue, row.queue + count, row.queue + queued, Better());
  const auto weight = [&](int i) {
    return std::exp(double{row.queue[i].value} - row.queue[0].value);
  };
  double sum = 0.0, entropy = 0.0;
  for (int i = 0; i < count; ++i) sum += weight(i);
  const auto term = [&](int i) {
    const double p = weight(i) / sum;
    return p > 0.0 ? -p * std::log(p) : 0.0;
  };
  for (int i = 0; i < count; ++i) entropy += term(i);
  int kept = 0;
  double so_far = 0.0;
  while (kept < count && (so_far += term(kept)) <= h * entropy) ++kept;
  if (count > 0) keep_through(row.queue[std::max(kept, 1) - 1], row);
}

void apply_top_k(int k, const Row& row) {
  if (k < row.vocab) keep_through(with_ties(kth_best(k, row)), row);
}

void apply_top_p(float p, int keep, const Row& row) {
  const Softmax softmax(row);
  const Candidate least = kth_best(keep, row);
  const auto key = [](float score) { return score; };
  keep_through(worse(end_of_mass(p, softmax, row, softmax.peak, key), least), row);
}

// Keeps what has a probability of `cutoff`, in float32 as Hugging Face compares them, and what does
// not come behind `least`.
void apply_cutoff(float cutoff, const Softmax& softmax, Candidate least, const Row& row) {
  Floats lowest = cpu::broadcast(INFINITY);
  const auto sum = static_cast<float>(softmax.sum);
  for_what_is_left(row, [&](int, const float* scores) {
    for (int c = 0; c < kGroup; c += kLanes) {
      const Floats x = cpu::load(scores + c);
      lowest = cpu::min(cpu::exp(x - softmax.peak) / sum >= cutoff ? x : lowest, lowest);
    }
  });
  const float end = -cpu::max_of(-lowest);
  keep_through(worse({end, INT_MAX}, least), row);
}

void apply_typical(float p, int keep, const Row& row) {
  const Softmax softmax(row);
  const auto mean = static_cast<float>(softmax.mean());
  const auto key = [=](float score) { return -std::abs(score - mean); };
  const int queued = queue_best(row.vocab, row);
  for (int i = 0; i < queued; ++i) row.queue[i].value = key(row.queue[i].value);
  Candidate least = kAll;
  if (queued > keep) {
    std::partial_sort(row.queue, row.queue + keep, row.queue + queued, Better());  // keep is small
    least = row.queue[keep - 1];
  }
  const Candidate end = end_of_mass(p, softmax, row, 0.0f, key);
  keep_through(worse(with_ties(end), least), row, key);
}

void apply_epsilon(float epsilon, int keep, const Row& row) {
  apply_cutoff(epsilon, Softmax(row), with_ties(kth_best(keep, row)), row);
}

void apply_eta(float epsilon, int keep, const Row& row) {
  const Softmax softmax(row);
  const double eta = std::sqrt(double{epsilon}) * std::exp(-softmax.entropy());
  const float cutoff = std::min(epsilon, static_cast<float>(eta));
  apply_cutoff(cutoff, softmax, with_ties(kth_best(keep, row)), row);
}

void apply_min_p(float p, int keep, const Row& row) {
  const Softmax softmax(row);
  apply_cutoff(p * (1.0f / static_cast<float>(softmax.sum)), softmax, kth_best(keep, row), row);
}

void filter_row(const FilterConfig& filters, const Row& row) {
  divide_by(filters.temperature, row);
  if (row.peak() == -INFINITY) return;
  const int keep = filters.min_tokens;
  if (filters.top_h > 0.0f) apply_top_h(filters.top_h, row);
  if (filters.top_k > 0) apply_top_k(std::max(filters.top_k, keep), row);
  if (filters.top_p < 1.0f) apply_top_p(filters.top_p, keep, row);
  if (filters.min_p > 0.0f) apply_min_p(filters.min_p, keep, row);
  if (filters.typical_p < 1.0f) apply_typical(filters.typical_p, keep, row);
  if (filters.epsilon > 0.0f) apply_epsilon(filters.epsilon, keep, row);
  if (filters.eta > 0.0f) apply_eta(filters.eta, keep, row);
}

}  // namespace

template <cpu::Isa isa>
void filter_scores(cpu::Stream<isa>& stream, const FilterParams& p) {
  const int64_t groups = groups_of(p.vocab);
  const cpu::Range mine = stream.share(p.state->active_count * p.beams);
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    const Row row = {.scores = p.scores + i * p.stride,
                     .group_max = p.group_max + i * groups,
                     .queue = p.queue + int64_t{stream.rank()} * p.vocab,
                     .maxima = p.maxima + stream.rank() * groups,
                     .vocab = p.vocab};
    filter_row(p.config.sentences[p.active[i / p.beams].id].filters, row);
  }
  stream.barrier();
}

template void filter_scores(cpu::Stream<cpu::Isa::DECODING_ISA>&, const FilterParams&);

}  // namespace decoding
