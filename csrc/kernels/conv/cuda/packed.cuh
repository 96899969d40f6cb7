// Depthwise convolution of packed rows: a block computes kTile tokens of a head. It fetches what
// they see once, 16 bytes a thread, all on their way before the first is looked at, and keeps it as
// floats in shared memory, with zeros where the sentence does not reach. Then a thread takes kPack
// channels of kRun tokens, so that whatever it reads serves all of these, and where the size of the
// kernel is known there is little else in the loop than multiply-adds.
//
// In 16 bits these are the limit from K = 15 or so on (H200). Tensor cores have more of them: the
// tokens of a head are its inputs times a band matrix of weights. But they add in an order of their
// own, and zero times what is not finite would spread it to tokens that do not see it.
#pragma once

#include <type_traits>

#include "kernels/conv/cuda/channels.cuh"
#include "kernels/conv/depthwise.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace decoding::cuda {

constexpr int kTile = 64;      // tokens of a block
constexpr int kChannels = 64;  // that it computes of a head
constexpr int kRun = 8;        // tokens of a thread
constexpr int kPack = 4;       // channels of it
constexpr int kLanes = kChannels / kPack, kRuns = kTile / kRun;
constexpr int kThreads = kLanes * kRuns;

// What a thread fetches at once: 16 bytes, or one element where rows do not begin at multiples of
// 16. Elements of 2 bytes stay words until they are stored: the compiler, which would take them
// apart, would wait for each fetch right after it.
template <typename T, bool whole>
struct Fetched {
  static constexpr int kCount = whole ? 16 / sizeof(T) : 1;
  using Bits = std::conditional_t<whole, uint4, T>;
  Bits bits{};

  __device__ __forceinline__ void fetch(const T* from) {
    bits = *reinterpret_cast<const Bits*>(from);
  }

  __device__ __forceinline__ void store(float* to) const {
    if constexpr (!whole) {
      *to = to_float(bits);
    } else if constexpr (sizeof(T) == sizeof(float)) {
      *reinterpret_cast<uint4*>(to) = bits;
    } else {
      const float2 a = unpack<T>(bits.x), b = unpack<T>(bits.y), c = unpack<T>(bits.z),
                   d = unpack<T>(bits.w);
      reinterpret_cast<float4*>(to)[0] = make_float4(a.x, a.y, b.x, b.y);
      reinterpret_cast<float4*>(to)[1] = make_float4(c.x, c.y, d.x, d.y);
    }
  }
};

// A thread's part of `rows` rows.
template <typename T, bool whole, int rows>
class InputRows {
 public:
  // x: where the first of the rows is; of all, [begin, end) and `columns` exist.
  __device__ __forceinline__ InputRows(const T* x, int stride, int begin, int end, int columns,
                                       int thread)
      : column_(thread % kAcross * P::kCount), first_(thread / kAcross) {
    x += first_ * stride + column_;
    end = column_ < columns ? min(end, rows) : begin;
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = first_ + n * kStep;
      if (begin <= i && i < end) pieces_[n].fetch(x + n * kStep * stride);
    }
  }

  __device__ __forceinline__ void store(float (*to)[kChannels]) const {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const int i = first_ + n * kStep;
      if (i < rows) pieces_[n].store(&to[i][column_]);
    }
  }

 private:
  using P = Fetched<T, whole>;
  static constexpr int kAcross = kChannels / P::kCount;  // threads of a row
  static constexpr int kStep = kThreads / kAcross, kEach = (rows + kStep - 1) / kStep;

  int column_, first_;
  P pieces_[kEach];
};

// weights[j][t] = softmax over j of scores[t * stride + j], for j < size: four lanes for each
// token. They add as a warp does with a lane for each j, to the bit: see decode.cuh.
template <int most, int pitch, typename T>
__device__ __forceinline__ void softmax_tokens(const T* scores, int64_t stride, int size,
                                               int tokens, int thread, float (*weights)[pitch]) {
  constexpr int kEach = (most + 3) / 4;
  const int lane = thread % 4;
#pragma unroll
  for (int from = 0; from < kTile; from += kThreads / 4) {
    const int t = from + thread / 4;
    const T* const row = scores + min(t, tokens - 1) * stride;
    float found[kEach], largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int j = lane + 4 * i;
      found[i] = j < size ? to_float(row[j]) : -INFINITY;
      largest = fmaxf(largest, found[i]);
    }
    largest = warp_max<4>(largest);
    float e[kMaxKernelSize / 4] = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) e[i] = expf(found[i] - largest);
    const float sum =
        warp_sum<4>(((e[0] + e[4]) + (e[2] + e[6])) + ((e[1] + e[5]) + (e[3] + e[7])));
    const float inverse = 1.0f / sum;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      // e / sum to the last bit, in three steps (Markstein 1990).
      const float quotient = e[i] * inverse;
      const float rest = fmaf(-sum, quotient, e[i]);
      if (lane + 4 * i < size) weights[lane + 4 * i][t] = fmaf(rest, inverse, quotient);
    }
  }
}

// The sums over j < size of kRun neighbouring tokens. input(i): counted from the first one of the
// first token; weights_at(j): of each token, or if not `made` one for all. A window of kRun inputs
// moves on by one with each j.
template <bool made, int exact, typename Input, typename WeightsAt>
__device__ __forceinline__ void convolve(Channels<kPack> (&sums)[kRun], int size, Input&& input,
                                         WeightsAt&& weights_at) {
  Channels<kPack> window[kRun];
#pragma unroll
  for (int r = 0; r < kRun; ++r) window[r] = input(r);
  const auto step = [&](int j, int u) {  // u: j % kRun
    const auto weights = weights_at(j);
#pragma unroll
    for (int r = 0; r < kRun; ++r) {
      sums[r].add(weights.values[made ? r : 0], window[(r + u) % kRun]);
    }
    window[u] = input(j + kRun);
  };
  if constexpr (exact > 0) {
#pragma unroll
    for (int j = 0; j < exact; ++j) step(j, j % kRun);
  } else {
#pragma unroll 1
    for (int j = 0; j < size; j += kRun) {
#pragma unroll
      for (int u = 0; u < kRun; ++u) {
        if (j + u >= size) break;
        step(j + u, u);
      }
    }
  }
}

// made: weights are the softmax of scores, other ones for each token. whole: every row of a head
// begins at a multiple of 16 bytes. exact: the size of the kernel; 0: any.
template <bool made, bool whole, int exact, typename T>
__global__ void __launch_bounds__(kThreads, 4)
    packed_depthwise_kernel(const PackedDepthwiseParams<T> p) {
  constexpr int kMost = exact > 0 ? exact : kMaxKernelSize, kRows = kTile + kMost - 1;
  constexpr int kPitch = made ? kTile + 8 : 1;                // + 8: a warp stores to all banks
  __shared__ alignas(16) float inputs[kRows + 1][kChannels];  // the last is fetched and not used
  __shared__ alignas(16) float weights[kMost][kPitch];
  const int size = exact > 0 ? exact : p.weights.kernel_size;
  const int thread = threadIdx.y * kLanes + threadIdx.x;
  const int chunks = (p.head_dim + kChannels - 1) / kChannels;
  const int head = blockIdx.z / chunks, channel = blockIdx.z % chunks * kChannels;
  if (!made && thread < size) weights[thread][0] = p.weights.weights[head * size + thread];
  wait_for_previous();
  let_next_start();
  const int64_t row = p.offsets[blockIdx.x];
  const int length = p.offsets[blockIdx.x + 1] - row, first = blockIdx.y * kTile;
  if (first >= length) return;
  const int tokens = min(kTile, length - first), left = p.causal ? size - 1 : size / 2;
  const int stride = p.heads * p.head_dim, columns = min(kChannels, p.head_dim - channel);
  const int64_t origin = (row + first) * stride + head * p.head_dim + channel;

  const int before = first - left;  // the position of the first row
  const InputRows<T, whole, kRows> rows(p.x + origin - left * stride, stride, max(0, -before),
                                        length - before, columns, thread);
  if constexpr (made) {
    softmax_tokens<kMost>(p.weights.scores + ((row + first) * p.heads + head) * size,
                          int64_t{p.heads} * size, size, tokens, thread, weights);
  }
  rows.store(inputs);
  __syncthreads();

  const int c = threadIdx.x * kPack, begin = threadIdx.y * kRun;
  if (begin >= tokens || c >= columns) return;
  Channels<kPack> sums[kRun];
  convolve<made, exact>(
      sums, size, [&](int i) { return Channels<kPack>(&inputs[begin + i][c]); },
      [&](int j) { return Channels<made ? kRun : 1>(&weights[j][made ? begin : 0]); });
  T* const y = p.y + origin + begin * stride + threadIdx.x * kPack;
#pragma unroll
  for (int r = 0; r < kRun; ++r) {
    if (begin + r >= tokens) break;
    T* const to = y + r * stride;
    if constexpr (whole) {
      sums[r].store(to);
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        if (c + i < columns) to[i] = from_float<T>(sums[r].values[i]);
      }
    }
  }
}

}  // namespace decoding::cuda
