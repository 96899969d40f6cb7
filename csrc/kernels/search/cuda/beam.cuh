// One step of beam search for one sentence by one block. The rules are in beam.h; the order of
// everything is that of the CPU's beam.cc, but the beams are written side by side, and the rows
// that end enter the finished list all at once: each counts what comes before it.
#pragma once

#include "kernels/search/cuda/call.cuh"
#include "kernels/search/cuda/order.cuh"

namespace decoding::cuda::selection {

constexpr int kAhead = 4;  // loads that a thread has under way

// A beam of the next step.
struct NextBeam {
  int32_t parent, token;
  float sum;
};

// Shared memory for a sentence's bookkeeping, [K] each.
struct Ranks {
  float *lse, *sums;
  NextBeam* next_beams;
  Hypothesis *ended, *finished;

  // for each beam
  static constexpr int kBytes = 2 * sizeof(float) + sizeof(NextBeam) + 2 * sizeof(Hypothesis);
  __device__ Ranks(void* memory, int beams)
      : lse(static_cast<float*>(memory)),
        sums(lse + beams),
        next_beams(reinterpret_cast<NextBeam*>(sums + beams)),
        ended(reinterpret_cast<Hypothesis*>(next_beams + beams)),
        finished(ended + beams) {}
};

// length^a, in double precision and then rounded, as Python and torch do.
static __device__ __noinline__ float penalty(double length_penalty, int length) {
  return static_cast<float>(pow(static_cast<double>(length), length_penalty));
}

// Sorts every continuation of a sentence by its score. The queue holds m tokens of each beam; keys
// of what is none have no order. Then the id is beam * V + token. False where the sentence's logits
// were not finite.
template <typename T>
__device__ bool merge(const SelectParams<T>& p, Queue queue, Ranks ranks) {
  bool finite = true;
#pragma unroll 1
  for (uint32_t at = threadIdx.x; at < p.beams * p.m; at += kThreads) {
    const int beam = at / static_cast<uint32_t>(p.m);
    const Key token = queue.keys[at];
    const float lse = ranks.lse[beam];
    const float score = ranks.sums[beam] + (value_of(token) - lse);
    queue.keys[at] = is_none(token) ? none(at) : key_of(score, beam * p.vocab + id_of(token));
    finite &= static_cast<bool>(isfinite(lse));
  }
  if (!__syncthreads_and(finite)) return false;
  sort(queue, p.beams * p.m);
  return true;
}

struct Counts {
  int alive, ended;
};

// The first warp goes through the m best in order: those that go on become next_beams, those of the
// first K that end become rows. Fill-ins stand in behind the next_beams that are alive.
template <typename T>
__device__ Counts choose(const SelectParams<T>& p, const Call& call, int step, int sentence,
                         Queue queue, Ranks ranks) {
  const Ends ends = call.ends(p);
  const int first_slot = sentence * p.beams;
  __shared__ Counts shared;
  if (warp_id() == 0) {
    const unsigned before = (1u << lane_id()) - 1;
    Counts counts = {0, 0};
#pragma unroll 1
    for (int base = 0; base < p.m && counts.alive < p.beams; base += 32) {
      const int c = base + lane_id();
      const Key key = c < p.m ? queue.keys[c] : 0;
      const bool there = !is_none(key);
      const float sum = value_of(key);
      const uint32_t id = there ? id_of(key) : 0, beam = id / static_cast<uint32_t>(p.vocab);
      const int parent = first_slot + beam, token = id - beam * p.vocab;
      const Extension to = {step, sentence, parent, token};
      const bool ending = there && row_ends(ends, to, p.total_rows, p.vocab);
      const unsigned going = __ballot_sync(kAllLanes, there && !ending);
      const int place = counts.alive + __popc(going & before);
      if (there && !ending && place < p.beams) ranks.next_beams[place] = {parent, token, sum};
      const bool enters = ending && place < p.beams && c < p.beams;
      const unsigned entering = __ballot_sync(kAllLanes, enters);
      if (enters) {
        const float scale = penalty(call.sentence.beam.length_penalty, step);
        // What stems from a fill-in stays as bad as one, however long it is.
        const float score = sum <= 0.1f * kFillIn ? fminf(sum, sum / scale) : sum / scale;
        ranks.ended[counts.ended + __popc(entering & before)] = {score, sum, step, parent, token};
      }
      counts.ended += __popc(entering);
      counts.alive = min(p.beams, counts.alive + __popc(going));
    }
    __syncwarp();
#pragma unroll 1
    for (int beam = counts.alive + lane_id(); beam < p.beams && counts.alive > 0; beam += 32) {
      ranks.next_beams[beam] = {ranks.next_beams[0].parent, ranks.next_beams[0].token, kFillIn};
    }
    if (lane_id() == 0) shared = counts;
  }
  __syncthreads();
  return shared;
}

// Merges the rows that end into the finished list: before those that they beat, behind their
// equals; the K best stay. Returns how many there are then; `ranks.finished` is the list.
static __device__ __noinline__ int finish(Hypothesis* list, int count, int ended, int beams,
                                          Ranks ranks) {
  for (int r = threadIdx.x; r < count; r += kThreads) ranks.finished[r] = list[r];
  __syncthreads();
  for (int r = threadIdx.x; r < count + ended; r += kThreads) {
    const bool old = r < count;
    const Hypothesis row = old ? ranks.finished[r] : ranks.ended[r - count];
    int place = 0;  // both lists' rows that come first
    for (int o = 0; o < count; ++o) {
      place += old ? o < r : ranks.finished[o].score >= row.score;
    }
    for (int e = 0; e < ended; ++e) {
      const float other = ranks.ended[e].score;
      place += other > row.score || (!old && other == row.score && e < r - count);
    }
    if (place < beams) list[place] = row;
  }
  __syncthreads();
  return min(beams, count + ended);
}

// Stores the beams of the next step: token, parent and sum. A warp calls this.
template <typename T>
__device__ __forceinline__ void store_next_beams(const SelectParams<T>& p, const Call& call,
                                                 int step, int sentence,
                                                 const NextBeam* next_beams) {
  const Ends ends = call.ends(p);
  const int first_slot = sentence * p.beams;
  const int64_t at = int64_t{step - 1} * p.total_rows + first_slot;
#pragma unroll 1
  for (int beam = lane_id(); beam < p.beams; beam += 32) {
    const NextBeam next_beam = next_beams[beam];
    p.tokens[at + beam] = next_beam.token;
    p.parents[at + beam] = next_beam.parent;
    p.sums[first_slot + beam] = next_beam.sum;
    if (ends.stop_table == nullptr) continue;
    const Extension to = {step, sentence, next_beam.parent, next_beam.token};
    p.stop.stop_states[at + beam] = stop_state(ends, to, p.total_rows, p.vocab);
  }
}

// Copies where the beams' histories lie; each warp but the first takes some of the beams, and asks
// for several positions before it stores the first.
template <typename T>
__device__ __forceinline__ void copy_histories(const SelectParams<T>& p,
                                               const ActiveSentence& sentence,
                                               const NextBeam* next_beams) {
  const int64_t table = int64_t{p.total_rows} * p.history;
  const int32_t* from = p.cache_indirection + sentence.table() * table;
  int32_t* to = p.cache_indirection + sentence.next_table() * table +
                int64_t{sentence.id} * p.beams * p.history;
#pragma unroll 1
  for (int beam = warp_id() - 1; beam < p.beams; beam += kWarps - 1) {
    const int parent = next_beams[beam].parent;
    const int32_t* old = from + int64_t{parent} * p.history;
    int32_t* history = to + int64_t{beam} * p.history;
#pragma unroll 1
    for (int base = lane_id(); base < sentence.position; base += 32 * kAhead) {
      int32_t some[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        some[j] = base + 32 * j < sentence.position ? old[base + 32 * j] : 0;
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (base + 32 * j < sentence.position) history[base + 32 * j] = some[j];
      }
    }
    // It wrote the token that this step read.
    if (lane_id() == 0) history[sentence.position] = parent;
  }
}

// True when no continuation can enter the finished list, going by the rules of early stopping.
__device__ __forceinline__ bool cannot_improve(const Call& call, int step, float best_sum,
                                               float worst_finished) {
  const BeamConfig& beam = call.sentence.beam;
  if (beam.early_stopping == EarlyStopping::yes) return true;
  const bool longest = beam.early_stopping == EarlyStopping::never && beam.length_penalty > 0.0;
  const int length = longest ? call.sentence.max_new : step;
  return best_sum / penalty(beam.length_penalty, length) <= worst_finished;
}

// What a step does to a sentence.
struct Outcome {
  int alive;  // next_beams that are no fill-ins
  bool done;
};

// The rules, from the beams' best tokens in the queue to the next_beams.
template <typename T>
__device__ Outcome beam_step(const SelectParams<T>& p, const Call& call, int step, int sentence,
                             Queue queue, Ranks ranks) {
  const int first_slot = sentence * p.beams;
  Hypothesis* list = p.finished + int64_t{first_slot};
  int finished = call.finished;
  Outcome outcome = {0, true};
  if (!merge(p, queue, ranks)) {
    if (threadIdx.x == 0) p.fault[sentence] = step;
  } else {
    const Counts counts = choose(p, call, step, sentence, queue, ranks);
    if (counts.ended > 0) {
      finished = finish(list, finished, counts.ended, p.beams, ranks);
      if (threadIdx.x == 0) p.finished_count[sentence] = finished;
    }
    outcome.alive = counts.alive;
    if (counts.alive > 0) {
      outcome.done = finished == p.beams &&
                     cannot_improve(call, step, ranks.next_beams[0].sum, list[p.beams - 1].score);
    }
  }
  if (outcome.done) {
#pragma unroll 1
    for (int r = finished + threadIdx.x; r < p.beams; r += kThreads) {
      list[r] = {kFillIn, kFillIn, 0, first_slot, 0};
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      p.finished_count[sentence] = p.beams;
      p.done[sentence] = 1;
    }
  }
  return outcome;
}

}  // namespace decoding::cuda::selection
