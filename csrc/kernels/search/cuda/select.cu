// Everything between the logits and the next step in one launch. What it means is in select.h; the
// design is that of an exact hierarchical top-k.
//
// Several blocks share a row. Each reads its share of the logits once (scan.cuh), applies bans and
// forced tokens to it (constrain.cuh), finds its best tokens while they are at hand, leaving out
// few bans as it comes across them (topk.cuh), and hands over those and the sums that the row's
// log-sum-exp is made of (cluster_exchange.cuh). One block of a sentence then does its bookkeeping
// (beam.cuh, update.cuh), the last sentence's that of the step. Where tokens are sampled, the
// blocks of a row do so together, or, where top-k leaves few, one of them (sampling.cuh).
#include <algorithm>
#include <bit>

#include "kernels/cuda/launch.cuh"
#include "kernels/search/cuda/cluster_exchange.cuh"
#include "kernels/search/cuda/constrain.cuh"
#include "kernels/search/cuda/sampling.cuh"
#include "kernels/search/cuda/topk.cuh"
#include "kernels/search/cuda/update.cuh"
#include "kernels/search/select.h"

namespace decoding {
namespace cuda::selection {
namespace {

// Multiprocessors of the smallest H100. A smaller GPU, or a part of one, need not have as many side
// by side as a cluster of 16 blocks wants.
constexpr int kWholeGpu = 114;

constexpr int kLongShare = 512;  // groups

// Sizes that the host works out.
struct Shape {
  int groups, quads;  // of a row
  int capacity;       // of the queue
  int splits;         // blocks that share a row
  int each;           // groups of a block's share
  int rows;  // whose words one block reads: a sentence's where those form a cluster, else one
  ExchangeMode mode;
  bool packed;  // blocks outnumber multiprocessors: as many clusters as possible must run at once

  template <typename T>
  Shape(const SelectParams<T>& p, const Device& device)
      : groups(groups_of(p.vocab)), quads((groups + kQuad - 1) / kQuad) {
    const int merged = p.kind == SearchKind::beam ? p.beams * p.m : 1;
    capacity =
        static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max({kBins, 2 * p.m, merged}))));
    // Enough blocks to keep every multiprocessor busy, none with less than a round of groups. A
    // search is slowed down by the fullest multiprocessor, so its blocks do not outnumber them,
    // unless their shares would be so long that two of them wait for memory in turns.
    const bool samples = p.kind == SearchKind::sampling, clusters = device.hopper();
    const int all_rows = p.sentences * p.beams;
    const bool long_shares = groups / std::max(1, device.multiprocessors / all_rows) >= kLongShare;
    const int at_once = clusters && !samples ? 1 + long_shares : 4;
    const int wanted = std::max(
        1, std::min(at_once * device.multiprocessors / all_rows, quads * kQuad / kGroupsAtOnce));
    rows = 1;
    if (clusters) {
      const bool sentence = !samples && p.beams <= kPortableCluster &&
                            std::has_single_bit(static_cast<unsigned>(p.beams));
      if (sentence) rows = p.beams;
      const bool large = !samples && device.multiprocessors >= kWholeGpu && device.capability < 120;
      const int most = std::min(wanted, (large ? 16 : kPortableCluster) / rows);
      splits = static_cast<int>(std::bit_floor(static_cast<unsigned>(most)));
      mode = rows * splits > 1 ? ExchangeMode::cluster : ExchangeMode::none;
    } else {
      // What blocks exchange fits into scratch memory.
      const int room = (groups - 2 * quads) / p.m;
      splits = samples ? 1 : std::clamp(wanted, 1, std::max(1, room));
      mode = splits > 1 ? ExchangeMode::last_block : ExchangeMode::none;
    }
    each = (quads + splits - 1) / splits * kQuad;
    packed = mode == ExchangeMode::cluster && !samples &&
             int64_t{splits} * p.beams * p.sentences > device.multiprocessors;
    words = 2 * quads + (samples ? 0 : splits * p.m);
  }
  Cluster cluster() const {
    return {mode == ExchangeMode::cluster ? dim3(splits, rows) : dim3(1), packed};
  }

  // Shared memory: the groups' maxima, the queue, the words of `rows` rows, the sentence's ranks.
  __host__ __device__ size_t queue_at() const {
    return (sizeof(float) * kQuad * quads + 15) / 16 * 16;
  }
  __host__ __device__ size_t words_at() const { return queue_at() + sizeof(Key) * capacity; }
  __host__ __device__ size_t ranks_at() const { return words_at() + sizeof(Word) * words * rows; }
  size_t bytes(int beams) const { return ranks_at() + Ranks::kBytes * beams; }

  int words;  // of a row: the sums of its quads, the same after the rules, its blocks' best
};

// Whether top-k leaves out anything, so that one block samples for the row.
__device__ __forceinline__ bool samples_among_best(const Call& call, int vocab) {
  const int k = call.filters().top_k;
  return 0 < k && k < vocab;
}

// What comes in for one block of a cluster before it goes on.
template <SearchKind kind, typename T>
__device__ __forceinline__ int bytes_to_come(const SelectParams<T>& p, const Call& call,
                                             const Shape& shape) {
  constexpr int word = sizeof(Word);
  if (kind == SearchKind::sampling && samples_among_best(call, p.vocab)) {
    return shape.quads * (word + kQuad * static_cast<int>(sizeof(float)));
  }
  const int sums = call.renormalizes() ? 2 * shape.quads : shape.quads;
  const int best = kind == SearchKind::sampling ? 0 : shape.splits * p.m;
  return shape.rows * (sums + best) * word;
}

// Bans and forced tokens, in a block's share.
template <typename T>
__device__ __forceinline__ void constrain(const SelectParams<T>& p, const Call& call, int step,
                                          int quads, const Row<T>& share,
                                          const ClusterExchange& exchange) {
  constrain(p, call, step, share);
  if (call.renormalizes()) sum_again(share, exchange, quads);
}

// Hands over the best of a block's share, best first.
template <typename T>
__device__ __forceinline__ void search_share(const SelectParams<T>& p, const Shape& shape,
                                             const Bans& bans, const Row<T>& share,
                                             const ClusterExchange& exchange, Queue queue) {
  const int count = queue_best(share, p.m, bans, queue), first = blockIdx.x * p.m;
  const auto hand_over = [&](int rank, Key key) {
    const int at = first + rank;
    if (rank < p.m) exchange.put(2 * shape.quads + at, is_none(key) ? none(at) : key);
  };
  constexpr int parts = 8, few = kThreads / parts;
  int begin = 0;
  if (count <= few) {
    const int i = threadIdx.x / parts;
    const Key mine = i < count ? queue.keys[i] : 0;
    const int rank = rank_of<parts>(mine, queue.keys, count);
    if (threadIdx.x % parts == 0) hand_over(i < count ? rank : i, mine);
    begin = few;
  } else {
    sort(queue, count);
  }
#pragma unroll 1
  for (int i = begin + threadIdx.x; i < p.m; i += kThreads) {
    hand_over(i, i < count ? queue.keys[i] : 0);
  }
}

// From the words of `rows` rows, of which `index` is the first: their lse, and their m best tokens
// in the queue. Few warps are needed for either; they do both side by side.
template <typename T>
__device__ __forceinline__ void finalize_rows(const SelectParams<T>& p, const Call& call, int step,
                                              const Shape& shape, int index, const Word* words,
                                              Queue queue, float* lse) {
#pragma unroll 1
  for (int r = warp_id(); r < shape.rows; r += kWarps) {
    const float found =
        finalize_lse(p, call, step, index + r, words + r * shape.words, shape.quads);
    if (lane_id() == 0) lse[r] = found;
  }
  const uint32_t each = shape.splits * p.m;
#pragma unroll 1
  for (uint32_t t = kThreads - 1 - threadIdx.x; t < shape.rows * each; t += kThreads) {
    const uint32_t r = t / each, i = t - r * each;
    const Key* keys = words + r * shape.words + 2 * shape.quads;
    const Key mine = keys[i];
    uint32_t rank = i;
    if (shape.splits > 1) {
      rank = 0;
#pragma unroll 8
      for (uint32_t j = 0; j < each; ++j) rank += keys[j] > mine;
    }
    if (rank < p.m) queue.keys[r * p.m + rank] = mine;
  }
}

// Takes down what has been sampled for a row.
template <typename T>
__device__ __forceinline__ void finalize_sample(const SelectParams<T>& p, const Call& call,
                                                int step, const Shape& shape, int index,
                                                const Word* words, Candidate sampled, Queue queue,
                                                float* lse) {
  if (warp_id() > 0) return;
  const float found = finalize_lse(p, call, step, index, words, shape.quads);
  if (lane_id() > 0) return;
  *lse = found;
  *queue.keys = sampled.id < 0 ? none(0) : key_of(sampled.value, sampled.id);
}

// What has been found for `rows` rows, of which `index` is the first, for other kernels.
template <typename T>
__device__ __forceinline__ void write_best(const SelectParams<T>& p, int index, int rows,
                                           Queue queue) {
  Candidate* best = p.best + int64_t{index} * p.m;
#pragma unroll 1
  for (int c = threadIdx.x; c < rows * p.m; c += kThreads) {
    const Key key = queue.keys[c];
    best[c] = is_none(key) ? Candidate{-INFINITY, -1} : Candidate{value_of(key), id_of(key)};
  }
}

// Rows that did not meet in a cluster meet by way of memory. Whether this is the last of a
// sentence, which takes in what all have found, for beam search.
template <SearchKind kind, typename T>
__device__ bool exchange_sentence(const SelectParams<T>& p, const Call& call, int i, int index,
                                  Queue queue, float* lse) {
  write_best(p, index, 1, queue);
  if (!last_to_arrive(p.arrivals + int64_t{p.sentences} * p.beams + i, p.beams)) return false;
  if (kind != SearchKind::beam) return true;
  const auto* all = reinterpret_cast<const int2*>(p.best + int64_t{i} * p.beams * p.m);
#pragma unroll 1
  for (int at = threadIdx.x; at < p.beams * p.m; at += kThreads) {
    const int2 token = __ldcg(all + at);
    queue.keys[at] = token.y < 0 ? none(at) : key_of(__int_as_float(token.x), token.y);
  }
#pragma unroll 1
  for (int beam = threadIdx.x; beam < p.beams; beam += kThreads) {
    lse[beam] = lse_to_take_off(call, __ldcg(p.lse + i * p.beams + beam));
  }
  __syncthreads();
  return true;
}

// grid: (blocks that share a row, beams, sentences). Rows of sentences that are done have nothing
// to do.
template <SearchKind kind, typename T>
__global__ void __launch_bounds__(kThreads, kind == SearchKind::sampling || sizeof(T) == 4 ? 3 : 4)
    select_kernel(const SelectParams<T> p, const Shape shape) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ Call call;
  __shared__ uint64_t arrived;
  __shared__ ClusterAllGather::Memory gather_memory;
  __shared__ int queued, ended;
  const bool cluster = shape.mode == ExchangeMode::cluster;
  if (threadIdx.x == 0) queued = 0;
  if (cluster) {
    if (threadIdx.x == 0) {
      expect_one_thread(&arrived);
      if (kind == SearchKind::sampling) ClusterAllGather::open(gather_memory);
    }
    announce_to_cluster();
  }
  wait_for_previous();
  let_next_start();

  // Everything that can be asked for at once is, also where the row turns out to be none.
  const int i = blockIdx.z, index = i * p.beams + blockIdx.y;
  auto* group_max = reinterpret_cast<float*>(memory);
  const int groups = kQuad * shape.quads;
  const Row<T> share = {p.logits + int64_t{index} * p.stride, group_max, p.vocab,
                        min(static_cast<int>(blockIdx.x) * shape.each, groups),
                        min(static_cast<int>(blockIdx.x + 1) * shape.each, groups)};
  Batch<T> first, second;
  first.load(share, share.begin);
  second.load(share, share.begin + Batch<T>::kGroups);
  __syncwarp();  // the logits first: what is asked for next is soon waited for
  const StepState state = *p.state;
  // Places after the active sentences hold whatever was in memory.
  const ActiveSentence active = p.active[i];
  if (index == 0 && blockIdx.x == 0 && threadIdx.x == 0) *p.host_state = state;
  if (i >= state.active_count) return;
  const int sentence = active.id, number = active.number;
  call.copy(p, sentence, index);
  const int first_slot = sentence * p.beams + threadIdx.x;  // of a beam
  const bool has_slot = threadIdx.x < p.beams;
  const float sum = kind == SearchKind::beam && has_slot ? p.sums[first_slot] : 0.0f;
  const int length = kind != SearchKind::beam && has_slot ? p.length[first_slot] : 0;

  const Queue queue = {reinterpret_cast<Key*>(memory + shape.queue_at()), &queued, shape.capacity};
  auto* words = reinterpret_cast<Word*>(memory + shape.words_at());
  const Ranks ranks(memory + shape.ranks_at(), kind == SearchKind::beam ? p.beams : shape.rows);
  const int64_t scratch = int64_t{index} * shape.groups;
  const ClusterExchange exchange = {shape.mode, words + (blockIdx.y % shape.rows) * shape.words,
                                    &arrived, p.group_max + scratch, p.group_sum + scratch};
  if (cluster) wait_for_cluster();  // nobody may write to a block that has not begun
  scan(first, second, share, exchange);
  Call::wait_for_copies();
  __syncthreads();
  call.copy_few(p.config.words);
  const FilterConfig filters = call.filters();
  const RowRng rng = {call.sentence.seed, static_cast<uint32_t>(number), call.random_row,
                      filters.temperature};
  const bool together = kind != SearchKind::sampling || !samples_among_best(call, p.vocab);
  const bool few_bans = kind != SearchKind::sampling && call.bans_few(number);
  const bool constrained = !few_bans && call.changes(number);
  if (together && constrained) constrain(p, call, number, shape.quads, share, exchange);
  Candidate sampled;
  if constexpr (kind != SearchKind::sampling) {
    search_share(p, shape, few_bans ? call.bans(number) : Bans{}, share, exchange, queue);
  } else if (Call::wait_for_copies(); together) {
    ClusterAllGather gather(gather_memory, shape.splits);
    sampled = sample_together(share, filters.top_p, rng, gather, shape.splits, queue);
  } else if (cluster) {
    for (int g = share.begin + threadIdx.x; g < share.end; g += kThreads) {
      cuda::send(0, group_max + g, group_max[g], &arrived);
    }
  }
  if (cluster) {
    if (blockIdx.x > 0 || blockIdx.y % shape.rows > 0) return;
    if (threadIdx.x == 0) expect_bytes(&arrived, bytes_to_come<kind>(p, call, shape));
    wait_for_words(&arrived);
  } else if (shape.mode == ExchangeMode::last_block) {
    if (!last_to_arrive(p.arrivals + index, shape.splits)) return;
    exchange.take_from_scratch(shape.words);
  }
  if constexpr (kind == SearchKind::beam) {
#pragma unroll 1
    for (int beam = threadIdx.x; beam < p.beams; beam += kThreads) {
      ranks.sums[beam] = beam < kThreads ? sum : p.sums[sentence * p.beams + beam];
    }
  }
  __syncthreads();
  if constexpr (kind == SearchKind::sampling) {
    if (!together) {
      const Row<T> row = {share.logits, group_max, p.vocab, 0, groups};
      const ClusterExchange own = {ExchangeMode::none, words};
      if (constrained) constrain(p, call, number, shape.quads, row, own);
      sampled = sample_among_best(row, filters, rng, queue);
    }
    __syncthreads();
    finalize_sample(p, call, number, shape, index, words, sampled, queue, ranks.lse);
  } else {
    finalize_rows(p, call, number, shape, index, words, queue, ranks.lse);
  }
  __syncthreads();
  if (p.part == SelectPart::candidates) return write_best(p, index, shape.rows, queue);
  const bool met = shape.rows == p.beams;
  if (!met && !exchange_sentence<kind>(p, call, i, index, queue, ranks.lse)) return;

  Outcome outcome = {0, true};
  if constexpr (kind == SearchKind::beam) {
    outcome = beam_step(p, call, number, sentence, queue, ranks);
  } else {
    // Greedily, everything banned: Hugging Face takes id 0.
    constexpr int fallback = kind == SearchKind::greedy ? 0 : -1;
    outcome.done =
        update_rows(p, call, number, i, sentence, length, met, queue, ranks.lse, fallback);
  }
  // The first warp sees to the step while the others copy.
  if (warp_id() == 0) {
    if (outcome.alive > 0) store_next_beams(p, call, number, sentence, ranks.next_beams);
    // As long as no sentence ends, each keeps its place.
#pragma unroll 1
    for (int beam = lane_id(); beam < p.beams && !outcome.done && outcome.alive > 0; beam += 32) {
      append_row(p, call, number, i, beam, ranks.next_beams[beam].token);
    }
    if (lane_id() == 0 && !outcome.done) p.active[i] = active.next();
    __syncwarp();
    int32_t* step_at = p.arrivals + int64_t{p.sentences} * (p.beams + 1);
    if (lane_id() == 0) ended = arrive_at_counter(step_at, state.active_count, outcome.done);
  } else if (outcome.alive > 0) {
    copy_histories(p, active, ranks.next_beams);
  }
  __syncthreads();
  if (ended < 0) return;
  const int active_count = ended > 0 ? gather_active(p, state.active_count) : state.active_count;
  if (threadIdx.x == 0) store_state(p, state, active_count);
}

template <SearchKind kind, typename T>
void launch_select(cuda::Stream& stream, const SelectParams<T>& p) {
  const Shape shape(p, stream.device());
  launch_clusters(stream, select_kernel<kind, T>, shape.cluster(),
                  dim3(shape.splits, p.beams, p.sentences), dim3(kThreads),
                  shape.bytes(kind == SearchKind::beam ? p.beams : shape.rows), p, shape);
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
