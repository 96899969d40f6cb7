// What a step of constrained beam search (constrained.h) does with a sentence: one text for both
// devices, see beam.h.
#pragma once

#include "kernels/search/constrained.h"
#include "kernels/search/shared/beam.h"

namespace decoding {

struct ConstrainedSentence : BeamSentence {
  const ConstrainedStepParams& p;
  const Phrases& phrases;
  Ranked* queue;  // next_beams

  DECODING_EVERYWHERE ConstrainedSentence(const ConstrainedStepParams& params, int i)
      : BeamSentence(params.search, i),
        p(params),
        phrases(*params.phrases),
        queue(p.queue + int64_t{i} * s.beams * (1 + phrases.most_wanted)) {}

  DECODING_EVERYWHERE const Candidate* candidates() const {
    return p.candidates + int64_t{index} * p.m;
  }
  // Candidates that a plain beam search would let end.
  DECODING_EVERYWHERE int first_candidates() const { return s.beams < p.m ? s.beams : p.m; }

  DECODING_EVERYWHERE int32_t* progress(int step, int beam) const {
    const int64_t width = kProgress + phrases.count;
    return p.progress + (int64_t{step % 2} * s.total_rows + slot(beam)) * width;
  }
  DECODING_EVERYWHERE const int32_t* progress(int beam) const {
    return progress(active.number, beam);
  }
  DECODING_EVERYWHERE Advance advanced_by(const Candidate& c) const {
    return advanced(phrases, progress(c.id / s.vocab), c.id % s.vocab);
  }
  DECODING_EVERYWHERE Candidate next(int beam, int token) const {
    return {s.sums[slot(beam)] + p.scores[row(beam) * p.stride + token], beam * s.vocab + token};
  }
  DECODING_EVERYWHERE bool ends(const Candidate& c) const {
    return BeamSentence::ends(next_beam(c));
  }

  DECODING_EVERYWHERE void finish(const Candidate& c) const {
    insert(list(), count(), max_finished(), hypothesis(next_beam(c)));
  }

  DECODING_EVERYWHERE void finish_candidates() const {
    for (int c = 0; c < first_candidates(); ++c) {
      const Candidate& candidate = candidates()[c];
      if (!is_real(candidate.value)) return;
      if (ends(candidate) && advanced_by(candidate).complete()) finish(candidate);
    }
  }

  DECODING_EVERYWHERE void spare_late_ends() const {
    for (int beam = 0; beam < s.beams; ++beam) {
      if (!is_complete(progress(beam))) continue;
      for (int e = 0; e < config.eos.count; ++e) {
        const Candidate end = next(beam, s.config.words[config.eos.begin + e]);
        bool late = is_real(end.value);
        for (int c = 0; c < first_candidates(); ++c) late &= candidates()[c].id != end.id;
        if (late)
          insert(p.spare + slot(0), p.spare_count[sentence], s.beams, hypothesis(next_beam(end)));
      }
    }
  }

  DECODING_EVERYWHERE static bool before(const Ranked& a, const Ranked& b) {
    if (a.turn != b.turn) return a.turn < b.turn;
    if (a.bank != b.bank) return a.bank > b.bank;
    const Candidate &x = a.candidate, &y = b.candidate;
    return x.value != y.value ? x.value > y.value : x.id < y.id;
  }

  DECODING_EVERYWHERE void sort(int next_beams) const {
    for (int h = 1; h < next_beams; ++h) {
      const Ranked mine = queue[h];
      int at = h;
      for (; at > 0 && before(mine, queue[at - 1]); --at) queue[at] = queue[at - 1];
      queue[at] = mine;
    }
  }

  DECODING_EVERYWHERE void put(const Candidate& c, int& next_beams) const {
    if (!is_real(c.value) || ends(c)) return;
    for (int h = 0; h < next_beams; ++h) {
      if (queue[h].candidate.id == c.id) return;
    }
    queue[next_beams++] = {c, advanced_by(c).bank(phrases), 0};
  }

  // Queues what may go on, by turns; returns how many do.
  DECODING_EVERYWHERE int choose() const {
    int next_beams = 0;
    for (int c = 0, going = 0; c < p.m && candidates()[c].id >= 0 && going < s.beams; ++c) {
      going += !ends(candidates()[c]);
      put(candidates()[c], next_beams);
    }
    for (int beam = 0; beam < s.beams; ++beam) {
      for_wanted(phrases, progress(beam), [&](int token) { put(next(beam, token), next_beams); });
    }
    sort(next_beams);
    for (int h = 1; h < next_beams; ++h) {
      if (queue[h].bank == queue[h - 1].bank) queue[h].turn = queue[h - 1].turn + 1;
    }
    sort(next_beams);
    return next_beams < s.beams ? next_beams : s.beams;
  }

  // The best way on of the beams that hold all phrases; id -1 where there is none.
  DECODING_EVERYWHERE Candidate last_whole() const {
    Candidate kept{-INFINITY, -1};
    for (int beam = 0; beam < s.beams; ++beam) {
      if (!is_complete(progress(beam))) continue;
      const Candidate* best = p.best + row(beam) * p.k;
      int c = 0;
      while (c < p.k && best[c].id >= 0 && ends(next(beam, best[c].id))) ++c;
      if (c == p.k || best[c].id < 0) continue;
      const Candidate mine = next(beam, best[c].id);
      if (is_real(mine.value) && mine.value > kept.value) kept = mine;
    }
    return kept;
  }

  DECODING_EVERYWHERE void extend_all(int going) const {
    for (int beam = 0; beam < s.beams; ++beam) {
      const Candidate& c = queue[beam < going ? beam : 0].candidate;
      if (beam < going) extend(beam, next_beam(c));
      advance(progress(c.id / s.vocab), advanced_by(c), progress(active.number + 1, beam));
    }
    fill_beams(0, going, s.beams);
  }

  DECODING_EVERYWHERE bool close_with_spare() const {
    const Hypothesis* spare = p.spare + slot(0);
    for (int r = 0; r < p.spare_count[sentence] && count() < max_finished(); ++r) {
      list()[count()++] = spare[r];
    }
    close();
    return false;
  }

  // The whole step but for the histories; returns whether beams go on.
  DECODING_EVERYWHERE bool step() const {
    if (faulty()) return false;
    finish_candidates();
    spare_late_ends();
    int going = choose();
    bool whole = count() > 0 || p.spare_count[sentence] > 0;
    for (int h = 0; h < going; ++h) whole |= advanced_by(queue[h].candidate).complete();
    if (!whole) {
      const Candidate kept = last_whole();
      if (kept.id >= 0) queue[going < s.beams ? going++ : going - 1].candidate = kept;
    }
    if (going == 0) return close_with_spare();
    extend_all(going);
    if (count() == max_finished() &&
        cannot_improve(candidates()[0].value, list()[max_finished() - 1].score)) {
      return close_with_spare();
    }
    if (!is_last_step()) return true;
    for (int h = 0; h < going; ++h) {
      if (advanced_by(queue[h].candidate).complete()) finish(queue[h].candidate);
    }
    return close_with_spare();
  }
};

}  // namespace decoding
