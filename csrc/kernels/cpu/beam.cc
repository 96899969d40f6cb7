// One step of beam search, sentences shared over the threads. The rules are in beam.h.
#include "kernels/beam.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/stream.h"
#include "kernels/cpu/trellis.h"

namespace decoding {
namespace {

// Queues every continuation of live sentence i that has a finite score; returns how many.
int contend(const MergeBeamsParams& p, int i, Contender* queue) {
  int queued = 0;
  for (int beam = 0; beam < p.beams; ++beam) {
    const int64_t row = int64_t{i} * p.beams + beam, first = row * p.k;
    const float sum = p.sums[p.live[i] * p.beams + beam];
    const float lse = p.lse != nullptr ? p.lse[row] : 0.0f;
    if (!std::isfinite(lse)) continue;  // a fault, which beam_step reports
    for (int c = 0; c < p.k && p.best[first + c].id >= 0; ++c) {
      const Candidate& next = p.best[first + c];
      const float total = sum + (next.value - lse);
      const float key = p.keys != nullptr ? p.keys[first + c] : total;
      queue[queued++] = {key - p.sibling_penalty * (c + 1), {total, beam * p.vocab + next.id}};
    }
  }
  return queued;
}

bool row_ends(const BeamSearch& s, int sentence, const cpu::Heir& heir) {
  const cpu::Extension to{s.now.number, sentence, heir.parent, heir.token};
  return cpu::row_ends(s.ends, s.sentences[sentence], to, s.total_slots, s.vocab);
}

// Keeps an heir among the first, by descending sum, behind its equals.
void rank(Candidate* alive, int count, Candidate heir) {
  int at = count;
  for (; at > 0 && alive[at - 1].value < heir.value; --at) alive[at] = alive[at - 1];
  alive[at] = heir;
}

void advance(const BeamStepParams& p, int i) {
  const BeamSearch& s = p.search;
  const int sentence = s.live[i], first_slot = sentence * s.beams;
  if (cpu::faulty(s, i)) return;
  const auto heir_of = [&](const Candidate& c) {
    return cpu::Heir{c.value, first_slot + c.id / s.vocab, c.id % s.vocab};
  };
  Candidate* candidates = p.candidates + int64_t{i} * p.m;
  Hypothesis* list = s.finished + int64_t{sentence} * s.capacity;
  int alive = 0;
  for (int c = 0; c < p.m && candidates[c].id >= 0 && (p.drawn || alive < s.beams); ++c) {
    const cpu::Heir heir = heir_of(candidates[c]);
    const bool host_ends = p.ended != nullptr && p.ended[int64_t{i} * p.m + c] != 0;
    if (!host_ends && !row_ends(s, sentence, heir)) {
      if (alive < s.beams) {
        rank(candidates, alive++, candidates[c]);  // alive <= c: in the place of what is read
      } else if (candidates[c].value > candidates[alive - 1].value) {
        rank(candidates, alive - 1, candidates[c]);
      }
    } else if (c < s.beams) {
      cpu::insert(list, s.finished_count[sentence], s.capacity, cpu::hypothesis(s, heir));
    }
  }
  if (alive == 0) return cpu::close(s, sentence);
  for (int beam = 0; beam < s.beams; ++beam) {
    cpu::Heir heir = heir_of(candidates[beam < alive ? beam : 0]);
    if (beam >= alive) heir.sum = kFillIn;
    cpu::extend(s, sentence, first_slot + beam, heir);
  }
  if (s.finished_count[sentence] == s.capacity &&
      cpu::settled(s, sentence, s.sums[first_slot], list[s.capacity - 1].score)) {
    cpu::close(s, sentence);
  }
}

}  // namespace

template <cpu::Isa isa>
void merge_beams(cpu::Stream<isa>& stream, const MergeBeamsParams& p) {
  const cpu::Range mine = stream.share(p.live_count);
  for (int i = mine.begin; i < mine.end; ++i) {
    Contender* queue = p.queue + int64_t{i} * p.beams * p.k;
    const int queued = contend(p, i, queue), count = std::min(queued, p.m);
    std::partial_sort(queue, queue + count, queue + queued, cpu::ahead);
    Candidate* candidates = p.candidates + int64_t{i} * p.m;
    for (int c = 0; c < p.m; ++c) {
      candidates[c] = c < count ? queue[c].candidate : Candidate{-INFINITY, -1};
    }
  }
  stream.barrier();
}

template <cpu::Isa isa>
void beam_step(cpu::Stream<isa>& stream, const BeamStepParams& p) {
  const cpu::Range mine = stream.share(p.search.now.live_count);
  for (int i = mine.begin; i < mine.end; ++i) advance(p, i);
  stream.barrier();
}

template void merge_beams(cpu::Stream<cpu::Isa::DECODING_ISA>&, const MergeBeamsParams&);
template void beam_step(cpu::Stream<cpu::Isa::DECODING_ISA>&, const BeamStepParams&);

}  // namespace decoding
