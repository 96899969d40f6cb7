// One random token for every row, rows shared over the threads. What is sampled is in sampling.h,
// how few tokens need noise in noise.h.
#include "kernels/search/sampling.h"

#include <algorithm>
#include <cfloat>
#include <climits>
#include <cmath>

#include "kernels/cpu/groups.h"
#include "kernels/cpu/stream.h"
#include "kernels/search/cpu/noise.h"

namespace decoding {
namespace {

using cpu::Better;

template <typename T>
struct Row {
  const T* logits;         // [V]
  const float* group_max;  // [G]
  Candidate* queue;        // [V], scratch
  float* maxima;           // [G], scratch
  uint32_t step, word;     // of the counter
};

// The best of logit / temperature + noise among the finite logits that are not behind `last`.
template <typename T>
Candidate draw(const SampleParams<T>& p, uint64_t seed, const FilterConfig& filters,
               const Row<T>& row, Candidate last) {
  cpu::Words words;
  Candidate chosen = {-INFINITY, -1};
  double best = -INFINITY;
  for (int g = 0; g < groups_of(p.vocab); ++g) {
    if (row.group_max[g] < last.value) continue;
    const float highest = row.group_max[g] / filters.temperature;
    uint32_t limit = cpu::largest_word(best - highest);
    words.draw(seed, row.step, row.word, g);
    if (!words.any_up_to(limit)) continue;
    const int begin = g * kGroup, end = std::min(p.vocab, begin + kGroup);
    for (int id = begin; id < end; ++id) {
      const uint32_t word = words[id - begin];
      const Candidate token = {row.logits[id], id};
      if (word > limit || !(token.value >= last.value) || better(last, token)) continue;
      const double score = token.value / filters.temperature + cpu::noise(word);
      if (score <= best) continue;
      best = score;
      chosen = token;
      limit = cpu::largest_word(best - highest);
    }
  }
  return chosen;
}

// exp(logit / temperature - peak), unnormalised probabilities.
struct Softmax {
  float scale, peak;

  double mass_of(const Candidate* queue, int queued) const {
    double sum = 0.0;
    for (int i = 0; i < queued; ++i) sum += std::exp(scale * queue[i].value - peak);
    return sum;
  }
  // Of all tokens whose logit reaches `low`.
  template <typename T>
  double mass_from(float low, const Row<T>& row, int vocab) const {
    double sum = 0.0;
    for (int g = 0; g < groups_of(vocab); ++g) {
      if (row.group_max[g] < low) continue;
      const cpu::Group group(row.logits, vocab, g);
      cpu::Floats part = {};
      for (int c = 0; c < kGroup; c += cpu::kLanes) {
        const cpu::Floats logits = cpu::load(group.columns + c);
        part += logits >= low ? cpu::exp(logits * scale - peak) : cpu::Floats{};
      }
      sum += cpu::sum_of(part);
    }
    return sum;
  }
};

// The end of the shortest best-first prefix with a mass of `target`, in a queue that `before`
// precedes. A search for its length by halves, each putting the better half in front.
Candidate end_of_prefix(Candidate* queue, int queued, const Softmax& softmax, double before,
                        double target) {
  int begin = 0, end = queued;  // the prefix is longer than begin, and end at most
  while (end - begin > 1) {
    const int middle = begin + (end - begin) / 2;
    std::nth_element(queue + begin, queue + middle, queue + end, Better());
    const double through = before + softmax.mass_of(queue + begin, middle - begin);
    if (through >= target) {
      end = middle;
    } else {
      begin = middle;
      before = through;
    }
  }
  return queue[begin];
}

constexpr Candidate kWorst = {-FLT_MAX, INT_MAX};  // behind every finite logit

// The last token that top-p keeps, best first. Bisection narrows down the logits among which it
// lies, so that few are queued even where the nucleus holds much of the vocabulary.
template <typename T>
Candidate end_of_nucleus(const FilterConfig& filters, int vocab, const Row<T>& row,
                         const Softmax& softmax) {
  const double target = filters.top_p * softmax.mass_from(-FLT_MAX, row, vocab);
  const float reach = 32.0f * filters.temperature;  // below: less mass than any p < 1 leaves out
  float low = softmax.peak * filters.temperature - reach, high = INFINITY;
  double before = 0.0;  // mass above high
  for (float step = reach / 2; step > reach / 1024; step /= 2) {
    const double mass = softmax.mass_from(low + step, row, vocab);
    if (mass >= target) {
      low += step;
    } else {
      high = std::nextafter(low + step, -INFINITY);
      before = mass;
    }
  }
  const int queued = cpu::queue_between(low, high, row.logits, row.group_max, vocab, row.queue);
  if (queued == 0) return kWorst;  // a broken row
  return end_of_prefix(row.queue, queued, softmax, before, target);
}

// The last token that the filters keep, best first.
template <typename T>
Candidate last_kept(const FilterConfig& filters, int vocab, const Row<T>& row) {
  const int k = filters.top_k;
  const float largest = *std::max_element(row.group_max, row.group_max + groups_of(vocab));
  const Softmax softmax = {1.0f / filters.temperature, largest / filters.temperature};
  if (largest == -INFINITY) return kWorst;
  if (k <= 0 || k >= vocab) {
    return filters.top_p < 1.0f ? end_of_nucleus(filters, vocab, row, softmax) : kWorst;
  }

  const float bound = cpu::bound_of_best(row.group_max, vocab, k, row.maxima);
  int queued = cpu::queue_between(bound, INFINITY, row.logits, row.group_max, vocab, row.queue);
  Candidate last = kWorst;
  if (queued >= k) {
    std::nth_element(row.queue, row.queue + k - 1, row.queue + queued, Better());
    last.value = row.queue[k - 1].value;  // with any id: ties stay
    queued = std::partition(row.queue + k, row.queue + queued,
                            [=](const Candidate& c) { return c.value == last.value; }) -
             row.queue;
  }
  if (filters.top_p == 1.0f) return last;
  return end_of_prefix(row.queue, queued, softmax, 0.0,
                       filters.top_p * softmax.mass_of(row.queue, queued));
}

}  // namespace

template <typename T, cpu::Isa isa>
void sample(cpu::Stream<isa>& stream, const SampleParams<T>& p) {
  const int64_t groups = groups_of(p.vocab);
  const cpu::Range mine = stream.share(p.state->active_count * p.beams);
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    const ActiveSentence& sentence = p.active[i / p.beams];
    const Row<T> row = {.logits = p.logits + i * p.vocab,
                        .group_max = p.group_max + i * groups,
                        .queue = p.queue + int64_t{stream.rank()} * p.vocab,
                        .maxima = p.maxima + stream.rank() * groups,
                        .step = static_cast<uint32_t>(sentence.number),
                        .word = static_cast<uint32_t>(p.random_row[i])};
    const SentenceConfig& config = p.config.sentences[sentence.id];
    const FilterConfig filters = p.config.search->processed ? FilterConfig{} : config.filters;
    p.chosen[i] = draw(p, config.seed, filters, row, last_kept(filters, p.vocab, row));
  }
  stream.barrier();
}

template void sample(cpu::Stream<cpu::Isa::DECODING_ISA>&, const SampleParams<float>&);

}  // namespace decoding
