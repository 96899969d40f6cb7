// One step of group diverse beam search, sentences shared over the threads. The rules are in
// diverse.h.
#include "kernels/diverse.h"

#include <algorithm>

#include "kernels/cpu/stream.h"
#include "kernels/cpu/trellis.h"
#include "kernels/processors.h"

namespace decoding {
namespace {

// One group of a live sentence.
template <typename T>
struct BeamGroup {
  const DiverseStepParams<T>& p;
  const BeamSearch& s;
  int live, sentence, index, size;

  BeamGroup(const DiverseStepParams<T>& params, int i, int group)
      : p(params),
        s(params.search),
        live(i),
        sentence(s.live[i]),
        index(group),
        size(s.beams / params.groups) {}

  int first() const { return index * size; }
  int slot(int beam) const { return sentence * s.beams + beam; }
  Hypothesis* list() const { return s.finished + slot(first()); }
  int32_t& count() const { return p.group_counts[int64_t{sentence} * p.groups + index]; }

  // What the sentence's beams have taken in this step: those of earlier groups are known.
  const int32_t* taken() const {
    return s.tokens + int64_t{s.now.number - 1} * s.total_slots + slot(0);
  }
  bool is_forced() const {
    const SentenceRules& own = s.sentences[sentence];
    return (s.now.number == 1 && own.forced_first >= 0) ||
           (s.now.number == own.max_new && p.forced_last);
  }

  int contend(Contender* queue) const;
  void choose(const Contender* best, int candidates) const;
  void finish_all() const;
  void idle() const;
  void step() const;
};

// Queues enough continuations of the group's beams to hold the m best; returns how many.
template <typename T>
int BeamGroup<T>::contend(Contender* queue) const {
  const int32_t *tokens = taken(), *end = tokens + first();
  const auto less = [&](int token) { return p.penalty * std::count(tokens, end, token); };
  int queued = 0;
  for (int beam = first(); beam < first() + size; ++beam) {
    const int row = live * s.beams + beam;
    const float sum = s.sums[slot(beam)], lse = p.lse != nullptr ? p.lse[row] : 0.0f;
    const auto put = [&](int token, float score) {
      queue[queued++] = {sum + score, {sum + score, beam * s.vocab + token}};
    };
    const Candidate* best = p.best + int64_t{row} * p.k;
    for (int c = 0, others = 0; c < p.k && best[c].id >= 0 && others < p.m; ++c) {
      const int token = best[c].id;
      const float lowered = less(token), score = best[c].value - lse;
      if (lowered == 0.0f) {
        put(token, score);
        ++others;
      } else if (p.processors == nullptr) {
        put(token, is_forced() ? score : score - lowered);
      }
    }
    if (p.processors == nullptr) continue;
    const ProcessedRow processed = processed_row(*p.processors, row);
    for (const int32_t* token = tokens; token < end; ++token) {
      if (std::find(tokens, token, *token) != token) continue;
      const float score =
          reprocess(*p.processors, processed, row, *token, less(*token), [](float x) { return x; });
      if (score > -INFINITY) put(*token, score);
    }
  }
  return queued;
}

template <typename T>
void BeamGroup<T>::choose(const Contender* best, int candidates) const {
  int alive = 0;
  for (int c = 0; c < candidates && alive < size; ++c) {
    const auto [sum, id] = best[c].candidate;
    const cpu::Heir heir{sum, slot(id / s.vocab), id % s.vocab};
    const cpu::Extension to{s.now.number, sentence, heir.parent, heir.token};
    if (!cpu::token_ends(s.ends, to, s.total_slots, s.vocab)) {
      cpu::extend(s, sentence, slot(first() + alive++), heir);
    } else if (c < size) {
      cpu::insert(list(), count(), size, cpu::hypothesis(s, heir));
    }
  }
  if (alive == 0) {
    cpu::fill_in(list(), count(), size, slot(first()));
    count() = kGroupStopped;
    return idle();
  }
  for (int beam = first() + alive; beam < first() + size; ++beam) {
    const int32_t parent = s.parents[taken() + first() - s.tokens], token = taken()[first()];
    cpu::extend(s, sentence, slot(beam), {kFillIn, parent, token});
  }
  if (count() == size && cpu::settled(s, sentence, best[0].key, list()[size - 1].score)) {
    count() = kGroupStopped;
  }
}

// The beams that go on finish as they are.
template <typename T>
void BeamGroup<T>::finish_all() const {
  for (int beam = first(); beam < first() + size; ++beam) {
    const int64_t at = taken() + beam - s.tokens;
    const cpu::Heir heir{s.sums[slot(beam)], s.parents[at], s.tokens[at]};
    cpu::insert(list(), count(), size, cpu::hypothesis(s, heir));
  }
  count() = kGroupStopped;
}

template <typename T>
void BeamGroup<T>::idle() const {
  for (int beam = first(); beam < first() + size; ++beam) {
    cpu::extend(s, sentence, slot(beam), {kFillIn, slot(beam), p.pad});
  }
}

template <typename T>
void BeamGroup<T>::step() const {
  if (count() == kGroupStopped) return idle();
  Contender* queue = p.queue + int64_t{live} * s.beams * p.k;
  const int queued = contend(queue), best = std::min(queued, p.m);
  std::partial_sort(queue, queue + best, queue + queued, cpu::ahead);
  choose(queue, best);
  if (count() != kGroupStopped && cpu::is_last_step(s.ends, s.sentences[sentence], s.now.number)) {
    finish_all();
  }
}

template <typename T>
void advance(const DiverseStepParams<T>& p, int i) {
  const BeamSearch& s = p.search;
  if (cpu::faulty(s, i)) return;
  bool done = true;
  for (int n = 0; n < p.groups; ++n) {
    const BeamGroup<T> group(p, i, n);
    group.step();
    done &= group.count() == kGroupStopped;
  }
  if (!done) return;
  const int sentence = s.live[i];
  Hypothesis* list = s.finished + int64_t{sentence} * s.beams;
  for (int rows = 0; rows < s.beams;) cpu::insert(list, rows, s.beams, Hypothesis(list[rows]));
  s.finished_count[sentence] = s.beams;
  s.done[sentence] = 1;
}

}  // namespace

template <typename T, cpu::Isa isa>
void diverse_step(cpu::Stream<isa>& stream, const DiverseStepParams<T>& p) {
  const cpu::Range mine = stream.share(p.search.now.live_count);
  for (int i = mine.begin; i < mine.end; ++i) advance(p, i);
  stream.barrier();
}

template void diverse_step(cpu::Stream<cpu::Isa::DECODING_ISA>&, const DiverseStepParams<float>&);

}  // namespace decoding
