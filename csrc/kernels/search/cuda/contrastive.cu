// Contrastive search. The contract is in contrastive.h.
//
// A block to each row; a warp takes every kWarps-th state of the context, and each lane a part of
// it, for the products with the row and with itself at once.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/types.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/search/contrastive.h"
#include "kernels/search/shared/contrastive.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kStepThreads = 64;

// a . b and b . b, given to all lanes.
template <typename T>
__device__ __forceinline__ float2 products(const T* a, const T* b, int size) {
  float2 sums{};
  for (int c = threadIdx.x % 32; c < size; c += 32) {
    const float x = to_float(a[c]), y = to_float(b[c]);
    sums = {fmaf(x, y, sums.x), fmaf(y, y, sums.y)};
  }
  return {warp_sum(sums.x), warp_sum(sums.y)};
}

template <typename T>
__global__ void __launch_bounds__(kThreads) contrast_kernel(const ContrastParams<T> p) {
  __shared__ float found[kWarps];
  wait_for_previous();
  let_next_start();
  const int row = blockIdx.x, warp = threadIdx.x / 32;
  if (row >= p.state->active_count * p.beams) return;
  const ActiveSentence sentence = p.active[row / p.beams];
  const int slot = sentence.id * p.slots + row % p.beams;
  const T* own = p.x + int64_t{row} * p.size;
  const float length = sqrtf(products(own, own, p.size).y);
  float most = -INFINITY;
  const auto compare = [&](const T* other) {
    const float2 sums = products(own, other, p.size);
    most = fmaxf(most, sums.x / (length * sqrtf(sums.y)));
  };
  if (p.prompt != nullptr) {
    const int end = p.prompt_offsets[sentence.id + 1];
    for (int t = p.prompt_offsets[sentence.id] + warp; t < end; t += kWarps) {
      compare(p.prompt + int64_t{t} * p.size);
    }
  }
  const int32_t* slots =
      p.cache_indirection + (int64_t{sentence.table()} * p.total_rows + slot) * p.history;
  for (int t = warp; t < sentence.position; t += kWarps) {
    compare(p.hidden + (int64_t{slots[t]} * p.history + t) * p.size);
  }
  if (threadIdx.x % 32 == 0) found[warp] = most;
  T* kept = p.hidden + (int64_t{slot} * p.history + sentence.position) * p.size;
  for (int c = threadIdx.x; c < p.size; c += kThreads) kept[c] = own[c];
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < kWarps; ++w) most = fmaxf(most, found[w]);
  p.similarity[row] = most;
}

// A block to each sentence: its first thread decides, all of them copy the histories.
__global__ void __launch_bounds__(kStepThreads) contrast_step_kernel(const ContrastStepParams p) {
  __shared__ bool goes_on;
  wait_for_previous();
  let_next_start();
  const int i = blockIdx.x;
  if (i >= p.search.state->active_count) return;
  if (threadIdx.x == 0) goes_on = contrast_sentence(p, i);
  __syncthreads();
  if (goes_on) BeamSentence(p.search, i).inherit(threadIdx.x, kStepThreads);
}

}  // namespace
}  // namespace cuda

template <typename T>
void contrast(cuda::Stream& stream, const ContrastParams<T>& p) {
  cuda::launch(stream, cuda::contrast_kernel<T>, dim3(p.sentences * p.beams), dim3(cuda::kThreads),
               0, p);
}

void contrast_step(cuda::Stream& stream, const ContrastStepParams& p) {
  cuda::launch(stream, cuda::contrast_step_kernel, dim3(p.sentences), dim3(cuda::kStepThreads), 0,
               p);
}

#define INSTANTIATE(T) template void contrast<T>(cuda::Stream&, const ContrastParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
