// A block has a row of the step, and goes through its heads one by one. Each thread has the
// positions that are a block's width apart: it keeps their scores and what the heads have added up
// in shared memory that no other thread reads.
#include <cstdint>

#include "kernels/attention/cuda/attention.cuh"
#include "kernels/attention/cuda/float8.cuh"
#include "kernels/attention/decode.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// Every thread gets the result, and may use `parts` [kWarps] again after the next one.
template <typename Combine>
__device__ __forceinline__ float over_block(float x, float* parts, Combine&& combine) {
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
  __syncthreads();
  float all = parts[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) all = combine(all, parts[w]);
  return all;
}

// pack: elements that are loaded at once.
template <typename C, int pack>
__device__ __forceinline__ float dot(const float* q, const C* k, int dim) {
  float sum = 0.0f;
#pragma unroll 4
  for (int d = 0; d < dim; d += pack) {
    const auto few = Vector<C, pack>::load(k + d);
#pragma unroll
    for (int i = 0; i < pack; ++i) sum = fmaf(q[d + i], few[i], sum);
  }
  return sum;
}

template <typename T, typename C, int pack>
__global__ void __launch_bounds__(kThreads)
    attention_weights_kernel(const AttentionWeightsParams<T, C> p) {
  if constexpr (!kConverts<C>) return;
  extern __shared__ float memory[];
  __shared__ float q[kMaxHeadDim], maxima[kWarps], totals[kWarps];
  float *scores = memory, *sums = memory + p.longest;  // [longest]
  wait_for_previous();
  let_next_start();
  const int row = blockIdx.x, i = row / p.beams;
  if (i >= p.state->active_count) return;
  const ActiveSentence sentence = p.active[i];
  if (sentence.number == 0) return;
  const int64_t cache_row = int64_t{sentence.id} * p.beams + row % p.beams;
  const int length = p.shared_lengths[sentence.id];
  const int group = heads_of_a_key(p.heads, p.kv_heads);
  for (int i = threadIdx.x; i < p.longest; i += kThreads) sums[i] = 0.0f;
  for (int head = 0; head < p.heads; ++head) {
    __syncthreads();  // all are done with the head before
    const T* own = p.q + int64_t{row} * p.stride + head * p.head_dim;
    for (int d = threadIdx.x; d < p.head_dim; d += kThreads) q[d] = to_float(own[d]);
    __syncthreads();
    const HeadCells cells = p.pool.cells(p.shared_pages.of(sentence.id), head / group, p.head_dim);
    const float* scales = p.pool.k_scales + (kIsFloat8<C> ? p.pool.first_cell(head / group) : 0);
    float top = kNoScore;
    for (int i = threadIdx.x; i < length; i += kThreads) {
      const float scale = p.scale * scale_of<C>(scales, cells, i);
      scores[i] = scale * dot<C, pack>(q, p.pool.k + cells.offset(i), p.head_dim);
      top = fmaxf(top, scores[i]);
    }
    top = over_block(warp_max(top), maxima, [](float a, float b) { return fmaxf(a, b); });
    float total = 0.0f;
    for (int i = threadIdx.x; i < length; i += kThreads) {
      scores[i] = expf(scores[i] - top);
      total += scores[i];
    }
    total = over_block(warp_sum(total), totals, [](float a, float b) { return a + b; });
    for (int i = threadIdx.x; i < length; i += kThreads) {
      sums[i] += scores[i] / (total * p.heads);
    }
  }
  float* y = p.y + ((sentence.number - 1) * int64_t{p.total_rows} + cache_row) * p.longest;
  for (int i = threadIdx.x; i < p.longest; i += kThreads) y[i] = sums[i];
}

template <int pack, typename T, typename C>
void start(Stream& stream, const AttentionWeightsParams<T, C>& p) {
  launch(stream, attention_weights_kernel<T, C, pack>, p.sentences * p.beams, kThreads,
         2 * sizeof(float) * p.longest, p);
}

}  // namespace
}  // namespace cuda

template <typename T, typename C>
void attention_weights(cuda::Stream& stream, const AttentionWeightsParams<T, C>& p) {
  if (p.sentences == 0) return;
  const bool aligned = kIsFloat8<C> || cuda::aligned16<T>(p.pool.k, p.head_dim);
  if (aligned) return cuda::start<16 / sizeof(T)>(stream, p);
  if constexpr (!kIsFloat8<C>) cuda::start<1>(stream, p);
}

#define INSTANTIATE(T) \
  template void attention_weights(cuda::Stream&, const AttentionWeightsParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE
#define INSTANTIATE(T) \
  template void attention_weights(cuda::Stream&, const AttentionWeightsParams<T, Float8>&);
DECODING_FOR_HALVES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
