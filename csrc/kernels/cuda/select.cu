// Everything between the logits and the next step in one launch. What it means is in select.h; the
// design is that of an exact hierarchical top-k.
//
// Several blocks share a row and read its logits once (scan.cuh). One of them applies the rules
// (rules.cuh) and finds the row's best tokens (topk.cuh) or draws one (sample.cuh); one block of a
// sentence does the sentence's bookkeeping (beam.cuh, rows.cuh), the last sentence's that of the
// step. Each is the last to arrive, known by tickets that are counted atomically, or, on sm_90, the
// first of a cluster.
#include <algorithm>
#include <bit>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/rules.cuh"
#include "kernels/cuda/sample.cuh"
#include "kernels/cuda/topk.cuh"
#include "kernels/select.h"

namespace decoding {
namespace cuda::selection {
namespace {

// How blocks that work on one thing find each other: by tickets, or as a cluster of sm_90, which is
// faster. A cluster holds a row's blocks or, where those are few, a sentence's; their number is a
// power of two.
enum class Meeting { tickets, rows, sentences };

constexpr int kClusterBlocks = 8;

// Sizes that the host works out.
struct Shape {
  int groups;
  int capacity;  // of the queue
  int splits;    // blocks that share a row
  Meeting meeting;

  template <typename T>
  Shape(const SelectParams<T>& p, const Device& device) : groups(groups_of(p.vocab)) {
    const int merged = p.kind == SearchKind::beam ? p.beams * p.m : 0;
    capacity =
        static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max({kBins, 2 * p.m, merged}))));
    // Enough blocks to keep every multiprocessor busy, none with less than a round of groups.
    const int wanted =
        std::min(4 * device.multiprocessors / (p.sentences * p.beams), groups / kGroupsAtOnce);
    meeting = device.hopper() ? Meeting::rows : Meeting::tickets;
    splits = std::clamp(wanted, 1, 16);
    if (meeting == Meeting::tickets) return;
    splits = std::bit_floor(static_cast<unsigned>(std::min(splits, kClusterBlocks)));
    // Where there are rows enough, a block better makes room than waits for the other rows.
    if (splits == 1 || !std::has_single_bit(static_cast<unsigned>(p.beams))) return;
    const int few = std::min(splits, kClusterBlocks / p.beams);
    if (few == 0 || (few < splits && groups > 4 * few * kGroupsAtOnce)) return;
    meeting = Meeting::sentences;
    splits = few;
  }
  dim3 cluster(int beams) const {
    if (meeting == Meeting::tickets) return dim3(1);
    return dim3(splits, meeting == Meeting::sentences ? beams : 1);
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

// The same from the blocks of a cluster, each of which has `share` groups. first: of the row's
// blocks in the cluster, which calls this.
template <typename T>
__device__ void fetch_groups(const Row<T>& row, unsigned first, int share) {
#pragma unroll 1
  for (int g = share + threadIdx.x; g < row.groups; g += kThreads) {
    const unsigned block = first + g / share;
    const float max = load_from_block(block, row.group_max + g);
    row.group_sum[g] = load_from_block(block, row.group_sum + g);
    row.group_max[g] = max;
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
  const int i = blockIdx.z, index = i * p.beams + blockIdx.y;
  const StepState now = *p.now;
  const int sentence = p.live[i];
  T* logits = p.logits + int64_t{index} * p.stride;
  const int share = (shape.groups + shape.splits - 1) / shape.splits, begin = blockIdx.x * share;
  const int end = min(begin + share, shape.groups);
  const int group = begin + threadIdx.x / kLanes;
  Columns<T> columns;
  columns.load(logits, group < end ? p.vocab : 0, group);
  if (index == 0 && blockIdx.x == 0 && threadIdx.x == 0) *p.seen = now;
  if (i >= now.live_count) return;
  call.take(asked);

  auto* group_max = reinterpret_cast<float*>(memory);
  const Row<T> row = {logits, group_max, group_max + shape.groups, p.vocab, shape.groups};
  const Queue queue = {reinterpret_cast<Key*>(memory + shape.queue_at()), shape.capacity};
  int32_t* sentences_at = p.tickets + int64_t{p.sentences} * p.beams;
  if (shape.meeting == Meeting::tickets) {
    float* all_max = p.group_max + int64_t{index} * shape.groups;
    float* all_sum = p.group_sum + int64_t{index} * shape.groups;
    scan(columns, logits, p.vocab, begin, end, all_max, all_sum);
    if (!last_to_arrive(p.tickets + index, shape.splits)) return;
    take_groups(row, all_max, all_sum);
  } else {
    scan(columns, logits, p.vocab, begin, end, row.group_max, row.group_sum);
    __syncthreads();
    meet_cluster();
    const unsigned first = shape.meeting == Meeting::sentences ? blockIdx.y * shape.splits : 0;
    if (blockIdx.x == 0) fetch_groups(row, first, share);
  }
  if (shape.meeting == Meeting::tickets || blockIdx.x == 0) {
    call.take_eos(p.eos);
    __syncthreads();
    finish_row<kind>(p, call, now.number, index, row, queue);
  }
  if (shape.meeting != Meeting::tickets) {
    __syncthreads();
    meet_cluster();  // nobody leaves before its groups have been fetched
    if (blockIdx.x > 0) return;
  }
  if (shape.meeting == Meeting::sentences) {
    if (blockIdx.y > 0) return;
  } else if (!last_to_arrive(sentences_at + i, p.beams)) {
    return;
  }

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
  const Shape shape(p, stream.device());
  const size_t shared = shape.bytes(kind == SearchKind::beam ? p.beams : 0);
  launch_clusters(stream, select_kernel<kind, T>, shape.cluster(p.beams),
                  dim3(shape.splits, p.beams, p.sentences), dim3(kThreads), shared, p, shape);
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
