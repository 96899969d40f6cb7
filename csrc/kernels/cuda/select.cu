// Everything between the logits and the next step in one launch. What it means is in select.h; the
// design is that of an exact hierarchical top-k.
//
// Several blocks share a row and read its logits once (scan.cuh). The last of them to arrive
// applies the rules (rules.cuh) and finds the row's best tokens (topk.cuh) or draws one
// (sample.cuh); the last row of a sentence does the sentence's bookkeeping (beam.cuh, rows.cuh),
// the last sentence that of the step. Who is last is known by tickets, counted atomically.
#include <algorithm>
#include <bit>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/rules.cuh"
#include "kernels/cuda/sample.cuh"
#include "kernels/cuda/topk.cuh"
#include "kernels/select.h"

namespace decoding {
namespace cuda::selection {
namespace {

// Sizes that the host works out.
struct Shape {
  int groups;
  int capacity;  // of the queue

  template <typename T>
  explicit Shape(const SelectParams<T>& p) : groups(groups_of(p.vocab)) {
    const int merged = p.kind == SearchKind::beam ? p.beams * p.m : 0;
    capacity =
        static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max({kBins, 2 * p.m, merged}))));
  }
  __host__ __device__ size_t queue_at() const {
    return (2 * sizeof(float) * groups + 15) / 16 * 16;
  }
  __host__ __device__ size_t ranks_at() const { return queue_at() + sizeof(Key) * capacity; }
  size_t bytes(int beams) const { return ranks_at() + Ranks::kBytes * beams; }
};

// Copies what several blocks found out about a row's groups.
template <typename T>
__device__ void take_groups(const Row<T>& row, const float* group_max, const float* group_sum) {
#pragma unroll 1
  for (int begin = threadIdx.x; begin < row.groups; begin += kThreads * kAhead) {
    float max[kAhead], sum[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int g = begin + j * kThreads;
      max[j] = g < row.groups ? __ldcg(group_max + g) : 0.0f;
      sum[j] = g < row.groups ? __ldcg(group_sum + g) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int g = begin + j * kThreads;
      if (g >= row.groups) break;
      row.group_max[g] = max[j];
      row.group_sum[g] = sum[j];
    }
  }
}

// What the rules and the search make of row `index`, whose groups have been scanned.
template <SearchKind kind, typename T>
__device__ void finish_row(const SelectParams<T>& p, const Call& call, int step, int index,
                           const Row<T>& row, Queue queue) {
  const float raw = log_sum_exp(row.group_max, row.group_sum, row.groups);
  const float lse = apply_rules(p, call.rules, step, row, raw);
  if (threadIdx.x == 0) p.lse[index] = lse;
  Candidate* best = p.best + int64_t{index} * p.m;
  if constexpr (kind == SearchKind::sampling) {
    const Candidate drawn = draw(row, call.rules, step, p.random_row[index], queue);
    if (threadIdx.x == 0) *best = drawn;
  } else {
    const int count = find_best(row, p.m, queue);
#pragma unroll 1
    for (int i = threadIdx.x; i < p.m; i += kThreads) {
      best[i] = i < count ? Candidate{value_of(queue.keys[i]), id_of(queue.keys[i])}
                          : Candidate{-INFINITY, -1};
    }
  }
}

// grid: (blocks that share a row, beams, sentences). Rows of sentences that are done have nothing
// to do.
template <SearchKind kind, typename T>
__global__ void __launch_bounds__(kThreads, kind == SearchKind::sampling || sizeof(T) == 4 ? 3 : 4)
    select_kernel(const SelectParams<T> p, const Shape shape) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ Call call;
  const uint32_t asked = Call::ask(p.rules);
  wait_for_previous();
  let_next_start();

  // Everything that can be asked for at once is, also where the row turns out to be none.
  const int i = blockIdx.z, index = i * p.beams + blockIdx.y, splits = gridDim.x;
  const StepState now = *p.now;
  const int sentence = p.live[i];
  T* logits = p.logits + int64_t{index} * p.stride;
  const int share = (shape.groups + splits - 1) / splits, begin = blockIdx.x * share;
  const int end = min(begin + share, shape.groups);
  const int group = begin + threadIdx.x / kLanes;
  Columns<T> first;
  first.load(logits, group < end ? p.vocab : 0, group);
  if (index == 0 && blockIdx.x == 0 && threadIdx.x == 0) *p.seen = now;
  if (i >= now.live_count) return;
  call.take(asked);

  auto* group_max = reinterpret_cast<float*>(memory);
  const Row<T> row = {logits, group_max, group_max + shape.groups, p.vocab, shape.groups};
  const Queue queue = {reinterpret_cast<Key*>(memory + shape.queue_at()), shape.capacity};
  // Where one block does the whole row, what it finds out stays in shared memory.
  float* all_max = p.group_max + int64_t{index} * shape.groups;
  float* all_sum = p.group_sum + int64_t{index} * shape.groups;
  float* to_max = splits == 1 ? row.group_max : all_max;
  float* to_sum = splits == 1 ? row.group_sum : all_sum;
  scan(first, logits, p.vocab, begin, end, to_max, to_sum);
  if (!last_to_arrive(p.tickets + index, splits)) return;
  call.take_eos(p.eos);
  if (splits > 1) {
    take_groups(row, all_max, all_sum);
    __syncthreads();
  }
  finish_row<kind>(p, call, now.number, index, row, queue);
  int32_t* sentences_at = p.tickets + int64_t{p.sentences} * p.beams;
  if (!last_to_arrive(sentences_at + i, p.beams)) return;

  bool done;
  if constexpr (kind == SearchKind::beam) {
    done = beam_step(p, call, now, i, sentence, queue, Ranks(memory + shape.ranks_at(), p.beams));
  } else {
    // Greedily, everything banned: Hugging Face takes id 0.
    done = accept_tokens(p, call, now.number, i, sentence, kind == SearchKind::greedy ? 0 : -1);
  }
  // As long as no sentence ends, each keeps its place.
#pragma unroll 1
  for (int beam = threadIdx.x; beam < p.beams && !done; beam += kThreads) {
    list_row(p, now.number, sentence, i, beam);
  }
  const int ended = hand_in(sentences_at + p.sentences, now.live_count, done);
  if (ended < 0) return;
  const int live_count = ended > 0 ? gather_live(p, now) : now.live_count;
  if (threadIdx.x == 0) publish(p, now, live_count);
}

template <SearchKind kind, typename T>
void launch_select(cuda::Stream& stream, const SelectParams<T>& p) {
  const Shape shape(p);
  const int rows = p.sentences * p.beams;
  // Enough blocks to keep every multiprocessor busy, none with less than one round of groups.
  const int wanted = std::clamp(4 * stream.device().multiprocessors / rows, 1, 16);
  const int splits = std::clamp(shape.groups / kGroupsAtOnce, 1, wanted);
  const int beams = kind == SearchKind::beam ? p.beams : 0;
  launch(stream, select_kernel<kind, T>, dim3(splits, p.beams, p.sentences), dim3(kThreads),
         shape.bytes(beams), p, shape);
}

}  // namespace
}  // namespace cuda::selection

template <typename T>
void select(cuda::Stream& stream, const SelectParams<T>& p) {
  using cuda::selection::launch_select;
  switch (p.kind) {
    case SearchKind::greedy:
      return launch_select<SearchKind::greedy>(stream, p);
    case SearchKind::sampling:
      return launch_select<SearchKind::sampling>(stream, p);
    case SearchKind::beam:
      return launch_select<SearchKind::beam>(stream, p);
  }
}

#define INSTANTIATE(T) template void select<T>(cuda::Stream&, const SelectParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
