// y = x[label] - log(sum(exp(x))) with an online log-sum-exp (Milakov and Gimelshein 2018). A row
// is a warp's, or where it is long a block's. Each thread goes through its columns once, 16 bytes
// at a time and a few loads ahead, and keeps their maximum and their sum relative to it; then the
// threads' maxima and sums are put together.
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/logprobs.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kShort = 2048;  // columns that one warp goes through
constexpr int kAhead = 4;     // loads under way

struct LogSum {
  float peak = -INFINITY;
  float sum = 0.0f;  // of exp(x - peak)

  // Where all is -inf, it weighs nothing, and no NaN arises.
  __device__ __forceinline__ static float reference(float peak) {
    return peak == -INFINITY ? 0.0f : peak;
  }

  template <int count>
  __device__ __forceinline__ void add(const float (&x)[count]) {
    float top = peak;
#pragma unroll
    for (int i = 0; i < count; ++i) top = fmaxf(top, x[i]);
    sum *= expf(peak - reference(top));
    peak = top;
#pragma unroll
    for (int i = 0; i < count; ++i) sum += expf(x[i] - reference(top));
  }

  __device__ __forceinline__ void join(const LogSum& other) {
    const float top = fmaxf(peak, other.peak);
    sum = sum * expf(peak - reference(top)) + other.sum * expf(other.peak - reference(top));
    peak = top;
  }

  __device__ __forceinline__ void add_lanes() {
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      join({__shfl_xor_sync(kAllLanes, peak, step), __shfl_xor_sync(kAllLanes, sum, step)});
    }
  }
};

// The columns of thread `rank` of `size`, in packs.
template <int pack, typename T>
__device__ __forceinline__ LogSum own_columns(const T* row, int vocab, int rank, int size) {
  using Pack = Vector<T, pack>;
  LogSum found;
  const int packs = vocab / pack;
  for (int first = rank; first < packs; first += kAhead * size) {
    Pack loaded[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = first + a * size;
      if (i < packs) loaded[a] = Pack::load(row + int64_t{i} * pack);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (first + a * size >= packs) break;
      float x[pack];
#pragma unroll
      for (int i = 0; i < pack; ++i) x[i] = loaded[a][i];
      found.add(x);
    }
  }
  for (int c = packs * pack + rank; c < vocab; c += size) {
    const float x[1] = {to_float(row[c])};
    found.add(x);
  }
  return found;
}

// warps: of a row, 1 or all of a block.
template <int pack, int warps, typename T>
__global__ void __launch_bounds__(kThreads) label_logprobs_kernel(const LabelLogprobsParams<T> p) {
  __shared__ float peaks[kWarps], sums[kWarps];
  wait_for_previous();
  let_next_start();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int r = blockIdx.x * (kWarps / warps) + warp / warps;
  if (r >= p.rows) return;
  const int label = p.labels[r];
  const T* row = p.logits + int64_t{r} * p.stride;
  const int rank = warps == 1 ? lane : threadIdx.x;
  LogSum all;
  if (label != kIgnored) all = own_columns<pack>(row, p.vocab, rank, warps * kWarp);
  all.add_lanes();
  if constexpr (warps > 1) {
    if (lane == 0) peaks[warp] = all.peak, sums[warp] = all.sum;
    __syncthreads();
    all = lane < warps ? LogSum{peaks[lane], sums[lane]} : LogSum{};
    all.add_lanes();
  }
  if (rank != 0) return;
  p.y[r] = label == kIgnored ? 0.0f : to_float(row[label]) - all.peak - logf(all.sum);
}

template <int pack, typename T>
void start(Stream& stream, const LabelLogprobsParams<T>& p) {
  if (p.vocab <= kShort) {
    const int blocks = (p.rows + kWarps - 1) / kWarps;
    launch(stream, label_logprobs_kernel<pack, 1, T>, blocks, kThreads, 0, p);
  } else {
    launch(stream, label_logprobs_kernel<pack, kWarps, T>, p.rows, kThreads, 0, p);
  }
}

}  // namespace
}  // namespace cuda

template <typename T>
void label_logprobs(cuda::Stream& stream, const LabelLogprobsParams<T>& p) {
  if (p.rows == 0) return;
  const bool aligned = cuda::aligned16<T>(p.logits, p.stride);
  aligned ? cuda::start<16 / sizeof(T)>(stream, p) : cuda::start<1>(stream, p);
}

#define INSTANTIATE(T) template void label_logprobs(cuda::Stream&, const LabelLogprobsParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
