// One step of beam search for one sentence by one block. The rules are in beam.h; the order of
// everything is that of the CPU's beam.cc, but the beams are written side by side, and the rows
// that end enter the finished list all at once: each counts what comes before it.
#pragma once

#include "kernels/cuda/call.cuh"
#include "kernels/cuda/order.cuh"

namespace decoding::cuda::selection {

constexpr int kAhead = 4;  // loads that a thread has under way

// A beam of the next step.
struct Heir {
  int32_t parent, token;
  float sum;
};

// Shared memory for a sentence's bookkeeping, [K] each.
struct Ranks {
  Heir* heirs;
  Hypothesis *ended, *finished;

  static constexpr int kBytes = sizeof(Heir) + 2 * sizeof(Hypothesis);  // for each beam
  __device__ Ranks(void* memory, int beams)
      : heirs(static_cast<Heir*>(memory)),
        ended(reinterpret_cast<Hypothesis*>(heirs + beams)),
        finished(ended + beams) {}
};

// length^a, in double precision and then rounded, as Python and torch do.
static __device__ __noinline__ float penalty(const SelectRules& rules, int length) {
  return static_cast<float>(pow(static_cast<double>(length), rules.length_penalty));
}

// Sorts every continuation of live sentence i by its score. Keys of what is none have no order, and
// the id is beam * V + token. False where the sentence's logits were not finite.
template <typename T>
__device__ bool merge(const SelectParams<T>& p, int i, int first_slot, Queue queue) {
  bool finite = true;
#pragma unroll 1
  for (int beam = warp_id(); beam < p.beams; beam += kWarps) {
    const int row = i * p.beams + beam;
    const float lse = __ldcg(p.lse + row), sum = p.sums[first_slot + beam];
    const int2* best = reinterpret_cast<const int2*>(p.best + int64_t{row} * p.m);
#pragma unroll 1
    for (int c = lane_id(); c < p.m; c += 32) {
      const int2 token = __ldcg(best + c);
      const float score = sum + (__int_as_float(token.x) - lse);
      const int at = beam * p.m + c;
      queue.keys[at] = token.y < 0 ? static_cast<Key>(at) : key_of(score, beam * p.vocab + token.y);
    }
    finite &= static_cast<bool>(isfinite(lse));
  }
  if (!__syncthreads_and(finite)) return false;
  sort(queue, p.beams * p.m);
  return true;
}

struct Counts {
  int alive, ended;
};

// The first warp goes through the m best in order: those that go on become heirs, those of the
// first K that end become rows.
template <typename T>
__device__ Counts choose(const SelectParams<T>& p, const Call& call, int step, int first_slot,
                         Queue queue, Ranks ranks) {
  __shared__ Counts shared;
  if (warp_id() == 0) {
    const unsigned before = (1u << lane_id()) - 1;
    Counts counts = {0, 0};
#pragma unroll 1
    for (int base = 0; base < p.m && counts.alive < p.beams; base += 32) {
      const int c = base + lane_id();
      const Key key = c < p.m ? queue.keys[c] : 0;
      const bool there = key >> 32 != 0;
      const float sum = value_of(key);
      const int id = there ? id_of(key) : 0;
      const int parent = first_slot + id / p.vocab, token = id % p.vocab;
      const bool ending = there && call.ends(p.eos, step, token);
      const unsigned going = __ballot_sync(kAllLanes, there && !ending);
      const int place = counts.alive + __popc(going & before);
      if (there && !ending && place < p.beams) ranks.heirs[place] = {parent, token, sum};
      const bool enters = ending && place < p.beams && c < p.beams;
      const unsigned entering = __ballot_sync(kAllLanes, enters);
      if (enters) {
        const float scale = penalty(call.rules, step);
        // What stems from a fill-in stays as bad as one, however long it is.
        const float score = sum <= 0.1f * kFillIn ? fminf(sum, sum / scale) : sum / scale;
        ranks.ended[counts.ended + __popc(entering & before)] = {score, sum, step, parent, token};
      }
      counts.ended += __popc(entering);
      counts.alive = min(p.beams, counts.alive + __popc(going));
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

// Stores the beams of the next step: token, parent, sum and where the history lies. Fill-ins stand
// in behind the `alive` first.
template <typename T>
__device__ void extend(const SelectParams<T>& p, StepState now, int first_slot, int alive,
                       const Heir* heirs) {
  const int64_t at = int64_t{now.number - 1} * p.total_slots + first_slot;
#pragma unroll 1
  for (int beam = threadIdx.x; beam < p.beams; beam += kThreads) {
    const Heir heir = heirs[beam < alive ? beam : 0];
    p.tokens[at + beam] = heir.token;
    p.parents[at + beam] = heir.parent;
    p.sums[first_slot + beam] = beam < alive ? heir.sum : kFillIn;
  }
  const int64_t table = int64_t{p.total_slots} * p.history;
  const int32_t* from = p.slots + now.number % 2 * table;
  int32_t* to = p.slots + (now.number + 1) % 2 * table + int64_t{first_slot} * p.history;
  // Each warp takes some of the beams, and asks for several positions before it stores the first.
#pragma unroll 1
  for (int beam = warp_id(); beam < p.beams; beam += kWarps) {
    const int parent = heirs[beam < alive ? beam : 0].parent;
    const int32_t* old = from + int64_t{parent} * p.history;
    int32_t* history = to + int64_t{beam} * p.history;
#pragma unroll 1
    for (int base = lane_id(); base < now.position; base += 32 * kAhead) {
      int32_t some[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        some[j] = base + 32 * j < now.position ? old[base + 32 * j] : 0;
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (base + 32 * j < now.position) history[base + 32 * j] = some[j];
      }
    }
    if (lane_id() == 0) history[now.position] = parent;  // it wrote the token that this step read
  }
}

// True when no continuation can enter the finished list, going by the rules of early stopping.
__device__ __forceinline__ bool settled(const SelectRules& rules, int step, float best_sum,
                                        float worst_finished) {
  if (rules.early_stopping == EarlyStopping::yes) return true;
  const bool longest = rules.early_stopping == EarlyStopping::never && rules.length_penalty > 0.0;
  return best_sum / penalty(rules, longest ? rules.max_new : step) <= worst_finished;
}

// Returns whether the sentence is done; if not, the heirs' tokens are what its rows read next.
template <typename T>
__device__ bool beam_step(const SelectParams<T>& p, const Call& call, StepState now, int i,
                          int sentence, Queue queue, Ranks ranks) {
  const int first_slot = sentence * p.beams;
  Hypothesis* list = p.finished + int64_t{first_slot};
  int finished = p.finished_count[sentence];
  bool done = true;
  if (!merge(p, i, first_slot, queue)) {
    if (threadIdx.x == 0) p.fault[sentence] = now.number;
  } else {
    const Counts counts = choose(p, call, now.number, first_slot, queue, ranks);
    if (counts.ended > 0) finished = finish(list, finished, counts.ended, p.beams, ranks);
    if (counts.alive > 0) {
      extend(p, now, first_slot, counts.alive, ranks.heirs);
      done = finished == p.beams &&
             settled(call.rules, now.number, ranks.heirs[0].sum, list[p.beams - 1].score);
    }
  }
  __syncthreads();
  if (done) {
#pragma unroll 1
    for (int r = finished + threadIdx.x; r < p.beams; r += kThreads) {
      list[r] = {kFillIn, kFillIn, 0, first_slot, 0};
    }
  }
  if (threadIdx.x == 0) {
    p.finished_count[sentence] = done ? p.beams : finished;
    if (done) p.done[sentence] = 1;
  }
  return done;
}

}  // namespace decoding::cuda::selection
