// Draws without replacement, rows shared over the threads. The contract is in gumbel_topk.h, how
// few tokens need noise in noise.h.
#include "kernels/search/gumbel_topk.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/groups.h"
#include "kernels/cpu/stream.h"
#include "kernels/search/cpu/noise.h"

namespace decoding {
namespace {

// The m best keys so far, in a heap with the worst in front, and what they stand for.
class Sampled {
 public:
  Sampled(Candidate* keys, int m) : keys_(keys), m_(m) {}

  // What a key must exceed, or equal with a lower id.
  float worst() const { return count_ < m_ ? -INFINITY : keys_[0].value; }
  void offer(Candidate key) {
    if (count_ == m_) {
      if (!better(key, keys_[0])) return;
      std::pop_heap(keys_, keys_ + count_--, cpu::Better());
    }
    keys_[count_++] = key;
    std::push_heap(keys_, keys_ + count_, cpu::Better());
  }
  int sort() {
    std::sort_heap(keys_, keys_ + count_, cpu::Better());
    return count_;
  }

 private:
  Candidate* keys_;  // [m]
  int m_, count_ = 0;
};

struct Row {
  const float* scores;  // [V]
  Candidate* best;      // [m]
  float* keys;          // [m]
  float sum;
  uint32_t step, word;  // of the counter
};

void sample_row(const SampleCandidatesParams& p, uint64_t seed, const Row& row) {
  Sampled sampled(row.best, p.m);  // keys for the time being
  cpu::Words words;
  for (int g = 0; g < groups_of(p.vocab); ++g) {
    const float highest = cpu::largest(cpu::Group(row.scores, p.vocab, g)) + row.sum;
    if (highest == -INFINITY) continue;
    uint32_t limit = cpu::largest_word(double{sampled.worst()} - highest);
    words.draw(seed, row.step, row.word, g);
    if (!words.any_up_to(limit)) continue;
    const int begin = g * kGroup, end = std::min(p.vocab, begin + kGroup);
    for (int id = begin; id < end; ++id) {
      const uint32_t word = words[id - begin];
      const float sum = row.scores[id] + row.sum;
      if (word > limit || !std::isfinite(sum)) continue;
      sampled.offer({static_cast<float>(sum + cpu::noise(word)), id});
      limit = cpu::largest_word(double{sampled.worst()} - highest);
    }
  }
  const int count = sampled.sort();
  for (int i = 0; i < p.m; ++i) {
    row.keys[i] = i < count ? row.best[i].value : -INFINITY;
    row.best[i] = i < count ? Candidate{row.scores[row.best[i].id], row.best[i].id}
                            : Candidate{-INFINITY, -1};
  }
}

}  // namespace

template <cpu::Isa isa>
void sample_candidates(cpu::Stream<isa>& stream, const SampleCandidatesParams& p) {
  const cpu::Range mine = stream.share(p.state->active_count * p.beams);
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    const ActiveSentence& sentence = p.active[i / p.beams];
    const int beam = i % p.beams;
    const SentenceConfig& config = p.config.sentences[sentence.id];
    sample_row(p, config.seed,
               {.scores = p.scores + i * p.stride,
                .best = p.best + i * p.m,
                .keys = p.keys + i * p.m,
                .sum = p.sums[sentence.id * p.beams + beam],
                .step = static_cast<uint32_t>(sentence.number),
                .word = static_cast<uint32_t>(config.random_first + beam)});
  }
  stream.barrier();
}

template void sample_candidates(cpu::Stream<cpu::Isa::DECODING_ISA>&,
                                const SampleCandidatesParams&);

}  // namespace decoding
