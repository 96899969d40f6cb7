// One step of beam search, sentences shared over the threads. The rules are in beam.h.
#include "kernels/beam.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/groups.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace {

bool ends(const BeamStepParams& p, int token) {
  if (p.step == p.max_new) return true;
  for (int e = 0; e < p.eos_count; ++e) {
    if (p.eos[e] == token) return true;
  }
  return false;
}

// length^a, in double precision and then rounded, as Python and torch do.
float penalty(const BeamStepParams& p, int length) {
  return static_cast<float>(std::pow(static_cast<double>(length), p.length_penalty));
}

// Queues every continuation of live sentence i that has a finite score; returns how many of the m
// best, in order at the queue's head, there are.
int merge(const BeamStepParams& p, int i, Candidate* queue) {
  int queued = 0;
  for (int beam = 0; beam < p.beams; ++beam) {
    const int row = i * p.beams + beam;
    const float sum = p.sums[p.live[i] * p.beams + beam];
    const Candidate* best = p.best + int64_t{row} * p.m;
    for (int c = 0; c < p.m && best[c].id >= 0; ++c) {
      queue[queued++] = {sum + (best[c].value - p.lse[row]), beam * p.vocab + best[c].id};
    }
  }
  const int count = std::min(queued, p.m);
  std::partial_sort(queue, queue + count, queue + queued, cpu::Better());
  return count;
}

// Puts a row into the sentence's finished list, before those that it beats; the K best stay.
void finish(const BeamStepParams& p, int sentence, Hypothesis row) {
  Hypothesis* list = p.finished + int64_t{sentence} * p.beams;
  int& count = p.finished_count[sentence];
  int at = count;
  while (at > 0 && list[at - 1].score < row.score) --at;
  if (at == p.beams) return;
  count = std::min(count + 1, p.beams);
  std::copy_backward(list + at, list + count - 1, list + count);
  list[at] = row;
}

// Stores beam `beam` of the next step: its token, its parent and where its history lies.
void extend(const BeamStepParams& p, int sentence, int beam, int parent, int token, float sum) {
  const int slot = sentence * p.beams + beam;
  const int64_t at = int64_t{p.step - 1} * p.total_slots + slot;
  p.tokens[at] = token;
  p.parents[at] = parent;
  p.sums[slot] = sum;
  int32_t* history = p.next_slots + int64_t{slot} * p.history;
  std::memcpy(history, p.slots + int64_t{parent} * p.history, sizeof(int32_t) * p.position);
  history[p.position] = parent;  // it wrote the token that this step read
}

// True when no continuation can enter the finished list, going by the rules of early stopping.
bool settled(const BeamStepParams& p, int sentence) {
  if (p.finished_count[sentence] < p.beams) return false;
  if (p.early_stopping == EarlyStopping::yes) return true;
  const bool longest = p.early_stopping == EarlyStopping::never && p.length_penalty > 0.0;
  const float bound = p.sums[sentence * p.beams] / penalty(p, longest ? p.max_new : p.step);
  return bound <= p.finished[int64_t{sentence + 1} * p.beams - 1].score;
}

void close(const BeamStepParams& p, int sentence) {
  Hypothesis* list = p.finished + int64_t{sentence} * p.beams;
  for (int r = p.finished_count[sentence]; r < p.beams; ++r) {
    list[r] = {kFillIn, kFillIn, 0, sentence * p.beams, 0};
  }
  p.finished_count[sentence] = p.beams;
  p.done[sentence] = 1;
}

void advance(const BeamStepParams& p, int i) {
  const int sentence = p.live[i], first_slot = sentence * p.beams;
  for (int row = i * p.beams; row < (i + 1) * p.beams; ++row) {
    if (!std::isfinite(p.lse[row])) {
      p.fault[sentence] = p.step;
      return close(p, sentence);
    }
  }
  Candidate* queue = p.queue + int64_t{i} * p.beams * p.m;
  const int count = merge(p, i, queue);
  const float scale = penalty(p, p.step);
  int alive = 0;
  for (int c = 0; c < count && alive < p.beams; ++c) {
    const float sum = queue[c].value;
    const int parent = first_slot + queue[c].id / p.vocab, token = queue[c].id % p.vocab;
    if (!ends(p, token)) {
      extend(p, sentence, alive++, parent, token, sum);
    } else if (c < p.beams) {
      // What stems from a fill-in stays as bad as one, however long it is.
      const float score = sum <= 0.1f * kFillIn ? std::min(sum, sum / scale) : sum / scale;
      finish(p, sentence, {score, sum, p.step, parent, token});
    }
  }
  if (alive == 0) return close(p, sentence);
  const int64_t at = int64_t{p.step - 1} * p.total_slots + first_slot;
  for (int beam = alive; beam < p.beams; ++beam) {
    extend(p, sentence, beam, p.parents[at], p.tokens[at], kFillIn);
  }
  if (settled(p, sentence)) close(p, sentence);
}

}  // namespace

template <cpu::Isa isa>
void beam_step(cpu::Stream<isa>& stream, const BeamStepParams& p) {
  const cpu::Range mine = stream.share(p.live_count);
  for (int i = mine.begin; i < mine.end; ++i) advance(p, i);
  stream.barrier();
}

template void beam_step(cpu::Stream<cpu::Isa::DECODING_ISA>&, const BeamStepParams&);

}  // namespace decoding
