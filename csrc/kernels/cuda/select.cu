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

// What the rules and the search make of a row whose groups have been scanned.
template <SearchKind kind, typename T>
__device__ void finish_row(const SelectParams<T>& p, int step, int index, const Row<T>& row,
                           Queue queue) {
  const int64_t groups_at = int64_t{index} * row.groups;
  for (int g = threadIdx.x; g < row.groups; g += kThreads) {
    row.group_max[g] = __ldcg(p.group_max + groups_at + g);
    row.group_sum[g] = __ldcg(p.group_sum + groups_at + g);
  }
  const float raw = log_sum_exp(row.group_max, row.group_sum, row.groups);
  const float lse = apply_rules(p, step, row, raw);
  __syncthreads();
  if (threadIdx.x == 0) p.lse[index] = lse;
  Candidate* best = p.best + int64_t{index} * p.m;
  if constexpr (kind == SearchKind::sampling) {
    const Candidate drawn = draw(row, *p.rules, step, p.random_row[index], queue);
    if (threadIdx.x == 0) *best = drawn;
  } else {
    const int count = find_best(row, p.m, queue);
    for (int i = threadIdx.x; i < p.m; i += kThreads) {
      best[i] = i < count ? Candidate{value_of(queue.keys[i]), id_of(queue.keys[i])}
                          : Candidate{-INFINITY, -1};
    }
  }
}

// grid: (blocks that share a row, rows). Rows of sentences that are done have nothing to do.
template <SearchKind kind, typename T>
__global__ void __launch_bounds__(kThreads, kind == SearchKind::sampling ? 3 : 4)
    select_kernel(const SelectParams<T> p, const Shape shape) {
  extern __shared__ __align__(16) unsigned char memory[];
  wait_for_previous();
  let_next_start();
  const StepState now = *p.now;
  const int index = blockIdx.y, splits = gridDim.x;
  if (now.live_count == 0 && index == 0 && blockIdx.x == 0 && threadIdx.x == 0) *p.seen = now;
  if (index >= now.live_count * p.beams) return;

  T* logits = p.logits + int64_t{index} * p.vocab;
  const int share = (shape.groups + splits - 1) / splits, begin = blockIdx.x * share;
  const int end = min(begin + share, shape.groups);
  const int64_t groups_at = int64_t{index} * shape.groups;
  if (p.vocab * sizeof(T) % 16 == 0) {
    scan<true>(logits, p.vocab, begin, end, p.group_max + groups_at, p.group_sum + groups_at);
  } else {
    scan<false>(logits, p.vocab, begin, end, p.group_max + groups_at, p.group_sum + groups_at);
  }
  if (!last_to_arrive(p.tickets + index, splits)) return;

  auto* group_max = reinterpret_cast<float*>(memory);
  const Row<T> row = {logits, group_max, group_max + shape.groups, p.vocab, shape.groups};
  const Queue queue = {reinterpret_cast<Key*>(memory + shape.queue_at()), shape.capacity};
  finish_row<kind>(p, now.number, index, row, queue);
  const int i = index / p.beams;
  int32_t* sentences_at = p.tickets + int64_t{p.sentences} * p.beams;
  if (!last_to_arrive(sentences_at + i, p.beams)) return;

  if constexpr (kind == SearchKind::beam) {
    beam_step(p, now, i, queue, Ranks(memory + shape.ranks_at(), p.beams));
  } else {
    // Greedily, everything banned: Hugging Face takes id 0.
    accept_tokens(p, now.number, i, kind == SearchKind::greedy ? 0 : -1);
  }
  if (!last_to_arrive(sentences_at + p.sentences, now.live_count)) return;
  gather_live(p, now);
}

template <SearchKind kind, typename T>
void launch_select(cuda::Stream& stream, const SelectParams<T>& p) {
  const Shape shape(p);
  const int rows = p.sentences * p.beams;
  // Enough blocks to keep every multiprocessor busy, none with less than one round of groups.
  const int wanted = std::clamp(4 * stream.device().multiprocessors / rows, 1, 16);
  const int splits = std::clamp(shape.groups / kGroupsAtOnce, 1, wanted);
  const int beams = kind == SearchKind::beam ? p.beams : 0;
  launch(stream, select_kernel<kind, T>, dim3(splits, rows), dim3(kThreads), shape.bytes(beams), p,
         shape);
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
