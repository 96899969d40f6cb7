// One step of constrained beam search, sentences shared over the threads. The rules are in
// constrained.h.
#include "kernels/constrained.h"

#include <algorithm>

#include "kernels/cpu/stream.h"
#include "kernels/cpu/trellis.h"

namespace decoding {
namespace {

// A live sentence.
struct Constrained {
  const ConstrainedStepParams& p;
  const BeamSearch& s;
  int live, sentence;
  Ranked* queue;  // heirs

  Constrained(const ConstrainedStepParams& params, int i)
      : p(params),
        s(params.search),
        live(i),
        sentence(s.live[i]),
        queue(p.queue + int64_t{i} * s.beams * (1 + p.phrases.most_wanted)) {}

  const Candidate* candidates() const { return p.candidates + int64_t{live} * p.m; }
  int slot(int beam) const { return sentence * s.beams + beam; }
  int width() const { return kProgress + p.phrases.count; }
  const int32_t* progress(int beam) const { return p.progress + int64_t{slot(beam)} * width(); }

  cpu::Heir heir(const Candidate& c) const {
    return {c.value, slot(c.id / s.vocab), c.id % s.vocab};
  }
  Candidate extension(int beam, int token) const {
    const float score = p.scores[(int64_t{live} * s.beams + beam) * p.stride + token];
    return {s.sums[slot(beam)] + score, beam * s.vocab + token};
  }
  Advance advanced_by(const Candidate& c) const {
    return advanced(p.phrases, progress(c.id / s.vocab), c.id % s.vocab);
  }
  bool ends(const Candidate& c) const {
    const cpu::Extension to{s.now.number, sentence, slot(c.id / s.vocab), c.id % s.vocab};
    return cpu::token_ends(s.ends, to, s.total_slots, s.vocab);
  }
  // Whether the candidate is one of those that a plain beam search takes.
  bool is_candidate(int id) const {
    const Candidate* end = candidates() + std::min(s.beams, p.m);
    return std::any_of(candidates(), end, [&](const Candidate& c) { return c.id == id; });
  }

  void finish(const Candidate& c) const {
    Hypothesis* list = s.finished + int64_t{sentence} * s.capacity;
    cpu::insert(list, s.finished_count[sentence], s.capacity, cpu::hypothesis(s, heir(c)));
  }
  void finish_candidates() const;
  void spare_late_ends() const;
  int queue_heirs() const;
  int choose(int heirs) const;
  Candidate last_whole() const;
  void extend(int beam, const Candidate& c, bool stands_in) const;
  void close() const;
  void step() const;
};

bool is_real(const Candidate& c) { return c.value > 0.1f * kFillIn; }

void Constrained::finish_candidates() const {
  for (int c = 0; c < std::min(s.beams, p.m); ++c) {
    const Candidate& candidate = candidates()[c];
    if (!is_real(candidate)) return;
    if (ends(candidate) && advanced_by(candidate).complete()) finish(candidate);
  }
}

void Constrained::spare_late_ends() const {
  for (int beam = 0; beam < s.beams; ++beam) {
    if (!is_complete(progress(beam))) continue;
    for (int e = 0; e < s.ends.eos_count; ++e) {
      const Candidate end = extension(beam, s.ends.eos[e]);
      if (!is_real(end) || is_candidate(end.id)) continue;
      cpu::insert(p.spare + slot(0), p.spare_count[sentence], s.beams,
                  cpu::hypothesis(s, heir(end)));
    }
  }
}

// Queues what may go on, in no order; returns how many there are.
int Constrained::queue_heirs() const {
  int heirs = 0;
  const auto put = [&](const Candidate& c) {
    const auto same = [&](const Ranked& other) { return other.candidate.id == c.id; };
    if (!is_real(c) || ends(c) || std::any_of(queue, queue + heirs, same)) return;
    queue[heirs++] = {c, advanced_by(c).bank(p.phrases), 0};
  };
  for (int c = 0, going = 0; c < p.m && candidates()[c].id >= 0 && going < s.beams; ++c) {
    going += !ends(candidates()[c]);
    put(candidates()[c]);
  }
  for (int beam = 0; beam < s.beams; ++beam) {
    for_wanted(p.phrases, progress(beam), [&](int token) { put(extension(beam, token)); });
  }
  return heirs;
}

// Sorts the heirs by turns; returns how many go on.
int Constrained::choose(int heirs) const {
  const auto ahead = [](const Ranked& a, const Ranked& b) {
    return a.bank != b.bank ? a.bank > b.bank : better(a.candidate, b.candidate);
  };
  std::sort(queue, queue + heirs, ahead);
  for (int h = 1; h < heirs; ++h) {
    queue[h].turn = queue[h].bank == queue[h - 1].bank ? queue[h - 1].turn + 1 : 0;
  }
  std::sort(queue, queue + heirs, [&](const Ranked& a, const Ranked& b) {
    return a.turn != b.turn ? a.turn < b.turn : ahead(a, b);
  });
  return std::min(heirs, s.beams);
}

// The best way on of the beams that hold all phrases; id -1 where there is none.
Candidate Constrained::last_whole() const {
  Candidate kept{-INFINITY, -1};
  for (int beam = 0; beam < s.beams; ++beam) {
    if (!is_complete(progress(beam))) continue;
    const Candidate* best = p.best + (int64_t{live} * s.beams + beam) * p.k;
    for (int c = 0; c < p.k && best[c].id >= 0; ++c) {
      const Candidate next = extension(beam, best[c].id);
      if (ends(next)) continue;
      if (is_real(next) && better(next, kept)) kept = next;
      break;
    }
  }
  return kept;
}

void Constrained::extend(int beam, const Candidate& c, bool stands_in) const {
  cpu::Heir next = heir(c);
  if (stands_in) next.sum = kFillIn;
  cpu::extend(s, sentence, slot(beam), next);
  advance(progress(c.id / s.vocab), advanced_by(c),
          p.next_progress + int64_t{slot(beam)} * width());
}

void Constrained::close() const {
  Hypothesis* list = s.finished + int64_t{sentence} * s.capacity;
  int& count = s.finished_count[sentence];
  for (int r = 0; r < p.spare_count[sentence] && count < s.capacity; ++r) {
    list[count++] = p.spare[slot(r)];
  }
  cpu::close(s, sentence);
}

void Constrained::step() const {
  finish_candidates();
  spare_late_ends();
  int going = choose(queue_heirs());
  const auto holds_all = [&](const Ranked& heir) { return advanced_by(heir.candidate).complete(); };
  const int32_t& finished = s.finished_count[sentence];
  if (finished == 0 && p.spare_count[sentence] == 0 &&
      std::none_of(queue, queue + going, holds_all)) {
    const Candidate kept = last_whole();
    if (kept.id >= 0) {
      going = std::min(going + 1, s.beams);
      queue[going - 1].candidate = kept;
    }
  }
  if (going == 0) return close();
  for (int beam = 0; beam < s.beams; ++beam) {
    extend(beam, queue[beam < going ? beam : 0].candidate, beam >= going);
  }
  const Hypothesis& worst = s.finished[int64_t{sentence + 1} * s.capacity - 1];
  if (finished == s.capacity && cpu::settled(s, sentence, candidates()[0].value, worst.score)) {
    return close();
  }
  if (!cpu::is_last_step(s.ends, s.sentences[sentence], s.now.number)) return;
  for (int h = 0; h < going; ++h) {
    if (holds_all(queue[h])) finish(queue[h].candidate);
  }
  close();
}

}  // namespace

template <cpu::Isa isa>
void constrained_step(cpu::Stream<isa>& stream, const ConstrainedStepParams& p) {
  const cpu::Range mine = stream.share(p.search.now.live_count);
  for (int i = mine.begin; i < mine.end; ++i) {
    if (!cpu::faulty(p.search, i)) Constrained(p, i).step();
  }
  stream.barrier();
}

template void constrained_step(cpu::Stream<cpu::Isa::DECODING_ISA>&, const ConstrainedStepParams&);

}  // namespace decoding
