// Packed attention by Hopper's matrix instruction, with FlashAttention-3's warp specialization
// (Shah et al. 2024): a producer, a group of four warps, copies the queries of a block and then
// tiles of keys and values to a pipeline of stages in shared memory. Consumers, groups with 64
// queries each, multiply these by the keys, and the weights, in registers, by the values. No
// consumer waits for another: while one finds weights, another multiplies. Only on compute
// capability 9.0, from code for it alone.
//
// Queries stay in shared memory: ptxas before CUDA 13.1 gives weights the registers of queries,
// which the next tile needs.
#include <algorithm>
#include <cstdint>

#include "kernels/attention/cuda/attention.cuh"
#include "kernels/attention/cuda/packed.cuh"
#include "kernels/attention/cuda/packed_results.cuh"
#include "kernels/attention/cuda/packed_rows.cuh"
#include "kernels/attention/cuda/packed_softmax.cuh"
#include "kernels/attention/cuda/packed_split.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace decoding {
namespace cuda {
namespace {

constexpr int kWarpgroup = 4 * kWarp;  // threads that multiply together
constexpr int kGroupQueries = 64;

// keys: of a tile; stages: tiles in shared memory; blocks: that a multiprocessor runs.
template <int dim, int consumers, int keys, int stages, int blocks>
struct Wgmma {
  static constexpr int kDim = dim, kKeys = keys, kStages = stages, kBlocks = blocks;
  static constexpr int kQueries = consumers * kGroupQueries;
  static constexpr int kConsumers = consumers * kWarpgroup;  // threads
  static constexpr int kThreads = kConsumers + kWarpgroup;
  // All threads start with as many registers; the producer leaves the consumers some of its own.
  static constexpr int kRegisters = 65536 / (blocks * kThreads) / 8 * 8, kOfProducer = 40;
  static constexpr int kOfConsumer =
      std::min((kRegisters + (kRegisters - kOfProducer) / consumers) / 8 * 8, 240);
};

// The queries, and the stages: keys, values, keys of the next tile and so on, in turn. Tile i is in
// stage i % kStages.
template <typename P, typename T>
struct Pipeline {
  static constexpr int kStages = P::kStages;
  alignas(1024) T rows[P::kQueries][P::kDim];
  alignas(1024) T stages[kStages][P::kKeys][P::kDim];
  uint64_t full[kStages], empty[kStages];

  using Rows = SwizzledRows<T, P::kDim>;
  __device__ Rows queries(int first) const { return Rows{shared_address(rows)}.from(first); }
  __device__ Rows tile(unsigned i) const { return {shared_address(stages[i % kStages])}; }

  // By one thread.
  __device__ void init() {
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      expect_threads(&full[i], kWarpgroup);
      expect_threads(&empty[i], P::kConsumers / kWarp);
    }
  }
  // Until tile i has been read that was in the stage before.
  __device__ void producer_acquire(unsigned i) const {
    if (i >= kStages) wait(empty[i % kStages], i / kStages - 1);
  }
  // When the thread has started all its copies of tile i, and the queries before the first one.
  __device__ void producer_commit(unsigned i) const { arrive_behind_copies(&full[i % kStages]); }

  __device__ void consumer_wait(unsigned i) const {
    wait(full[i % kStages], i / kStages);
    wgmma_see_copies();
  }
  __device__ void consumer_release(unsigned i) const {
    if (threadIdx.x % kWarp == 0) arrive(&empty[i % kStages]);
  }

 private:
  __device__ static void wait(const uint64_t& barrier, unsigned phase) {
    while (!complete(&barrier, phase % 2)) {
    }
  }
};

// What a block has in shared memory.
template <typename P, typename T>
constexpr int kSharedBytes =
    std::max(int{sizeof(Pipeline<P, T>)}, int{sizeof(Partial<P::kQueries, P::kDim>)});

// Copies the queries, and the tiles of a share of the keys.
template <typename P, typename T, typename Params, typename Keys>
__device__ __forceinline__ void produce(const Pipeline<P, T>& pipeline, const Params& p,
                                        const Sentence& sentence, const Keys& source,
                                        const KeySplit& split) {
  const int thread = threadIdx.x - P::kConsumers;
  request_rows<P::kQueries, P::kDim, kWarpgroup>(pipeline.queries(0), thread,
                                                 sentence.queries_of(p), StridedRows{p.stride},
                                                 sentence.begin, sentence.length, p.head_dim);
  for (int i = 0; i < 2 * (split.end - split.first); ++i) {
    pipeline.producer_acquire(i);
    request_rows<P::kKeys, P::kDim, kWarpgroup>(
        pipeline.tile(i), thread, i % 2 == 0 ? source.k : source.v, source.rows,
        (split.first + i / 2) * P::kKeys, source.length, p.head_dim);
    pipeline.producer_commit(i);
  }
  close_copies();
  wait_for_copies<0>();
}

template <typename T, int dim, int eights>
__device__ __forceinline__ void multiply_keys(float (&scores)[eights][4],
                                              const SwizzledRows<T, dim>& q,
                                              const SwizzledRows<T, dim>& k) {
  wgmma_begin(scores);
#pragma unroll
  for (int d = 0; d < dim; d += 16) wgmma<T>(scores, q.tile(0, d), k.tile(0, d));
  wgmma_close();
  wgmma_wait<0>(scores);
}

template <typename T, int dim, int eights, int columns>
__device__ __forceinline__ void add_values(float (&sums)[columns][4],
                                           const float (&weights)[eights][4],
                                           const SwizzledRows<T, dim>& v) {
  constexpr int kPart = dim <= 128 ? dim : 128;  // columns of an instruction
  uint32_t w[eights / 2][4];
#pragma unroll
  for (int n = 0; n < eights / 2; ++n) pack_weights<T>(w[n], weights, n);
  wgmma_begin(w, sums);
#pragma unroll
  for (int n = 0; n < eights / 2; ++n) {
#pragma unroll
    for (int d = 0; d < dim; d += kPart) {
      auto& part = reinterpret_cast<float (&)[kPart / 8][4]>(sums[d / 8]);
      wgmma_transposed<T>(part, w[n], v.tile(n * 16, d));
    }
  }
  wgmma_close();
  wgmma_wait<0>(sums);
}

// parts: blocks of a cluster, which share the keys of a tile of queries, if these are many.
template <bool with_bias, typename P, typename T, typename Keys>
__global__ void __launch_bounds__(P::kThreads, P::kBlocks)
    packed_attention_kernel(const PackedAttentionParams<T, Keys> p, int parts) {
  constexpr int kKeys = P::kKeys;
  extern __shared__ __align__(1024) char memory[];
  auto& pipeline = *reinterpret_cast<Pipeline<P, T>*>(memory);
  const Sentence sentence(p, P::kQueries, parts);
  const auto source = sentence.keys_of(p);
  if (threadIdx.x == 0) pipeline.init();
  wait_for_previous();
  let_next_start();
  if (sentence.begin >= sentence.length) return;
  const int first_query = source.first_query + sentence.begin;  // its position
  const View<with_bias> view(p, first_query, P::kQueries, source.length);
  const KeySplit split(view.first / kKeys, (view.end + kKeys - 1) / kKeys, sentence.part, parts);
  if (sentence.part >= split.parts) return;
  __syncthreads();
  if (threadIdx.x >= P::kConsumers) {
    lower_registers<P::kOfProducer>();
    return produce(pipeline, p, sentence, source, split);
  }

  raise_registers<P::kOfConsumer>();
  const int own = threadIdx.x / kWarp * 16;  // the warp's first query in the block
  // Its group's; the compiler does not know that all lanes have the same one.
  const int group = __shfl_sync(kAllLanes, threadIdx.x / kWarpgroup, 0) * kGroupQueries;
  const int seen = p.causal ? (first_query + group + kGroupQueries - 1) / kKeys + 1 : split.end;
  const int end = sentence.begin + group < sentence.length ? min(seen, split.end) : split.first;
  OnlineSoftmax<P::kDim> softmaxes[1];
  auto& softmax = softmaxes[0];
  int tile = split.first, i = 0;
  for (; tile < end; ++tile, i += 2) {
    float scores[kKeys / 8][4] = {}, factors[2];
    pipeline.consumer_wait(i);
    multiply_keys(scores, pipeline.queries(group), pipeline.tile(i));
    pipeline.consumer_release(i);
    weigh<with_bias>(softmax, scores, p, sentence.head, view, first_query + own, tile * kKeys,
                     factors);
    // Maxima seldom grow late in a long text.
    if (__any_sync(kAllLanes, factors[0] != 1.0f || factors[1] != 1.0f)) softmax.rescale(factors);
    pipeline.consumer_wait(i + 1);
    add_values(softmax.sums, scores, pipeline.tile(i + 1));
    pipeline.consumer_release(i + 1);
  }
  for (; i < 2 * (split.end - split.first); ++i) {  // what only other groups see
    pipeline.consumer_wait(i);
    pipeline.consumer_release(i);
  }
  store_results<with_bias, P::kQueries, P::kConsumers>(p, softmaxes, own, sentence, view, split,
                                                       parts, memory, pipeline.queries(0));
}

template <bool with_bias, typename P, typename T, typename Keys>
void start(Stream& stream, const PackedAttentionParams<T, Keys>& p) {
  const int tiles = (p.longest + P::kQueries - 1) / P::kQueries;
  const int64_t blocks = static_cast<int64_t>(p.heads) * p.sentences * tiles;
  const int parts = parts_of(stream, p, blocks, P::kBlocks, P::kKeys);
  launch_clusters(stream, packed_attention_kernel<with_bias, P, T, Keys>, dim3(1, parts),
                  grid_of(stream, p, tiles, parts), P::kThreads, kSharedBytes<P, T>, p, parts);
}

}  // namespace

template <bool with_bias, typename T, typename Keys>
bool attend_with_wgmma(Stream& stream, const PackedAttentionParams<T, Keys>& p) {
  if (stream.device().capability != 90 || stream.device().code != 90) return false;
  // More consumers read keys and values less often, where there are blocks enough, or keys to split
  // over them.
  if (p.head_dim <= 32) return false;
  if (p.head_dim <= 64) {
    const int64_t blocks = static_cast<int64_t>(p.heads) * p.sentences * ((p.longest + 127) / 128);
    const bool enough = most_keys(p) >= kManyKeys || blocks > 2 * stream.device().multiprocessors;
    p.longest > 128 && enough ? start<with_bias, Wgmma<64, 2, 64, 4, 2>>(stream, p)
                              : start<with_bias, Wgmma<64, 1, 64, 4, 3>>(stream, p);
  } else if (p.head_dim <= 128) {
    p.longest > 128 ? start<with_bias, Wgmma<128, 3, 64, 6, 1>>(stream, p)
                    : start<with_bias, Wgmma<128, 1, 64, 4, 2>>(stream, p);
  } else {
    start<with_bias, Wgmma<kMaxHeadDim, 2, 64, 4, 1>>(stream, p);
  }
  return true;
}

#define INSTANTIATE(with_bias, T)                                                       \
  template bool attend_with_wgmma<with_bias>(Stream&, const PackedAttentionParams<T>&); \
  template bool attend_with_wgmma<with_bias>(Stream&,                                   \
                                             const PackedAttentionParams<T, PagedKeys<T>>&);
INSTANTIATE(false, half)
INSTANTIATE(false, bfloat16)
INSTANTIATE(true, half)
INSTANTIATE(true, bfloat16)

}  // namespace cuda
}  // namespace decoding
