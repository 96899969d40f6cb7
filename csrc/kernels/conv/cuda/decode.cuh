// Depthwise convolution of one new token per row: a warp for each row and head. A lane finds out
// where the input of its weight lies; then all inputs are on their way to shared memory at once, 16
// bytes a lane, while the kernel before this one works. They are older than it, but for the newest.
#pragma once

#include "kernels/conv/cuda/channels.cuh"
#include "kernels/conv/depthwise.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace decoding::cuda {

constexpr int kStepWarps = 4;
static_assert(kMaxKernelSize == kWarp);

// Channels of a lane, and of a warp. whole: every row of a head begins at a multiple of 16 bytes.
template <bool whole>
constexpr int kStepPack = whole ? 2 : 1;
template <bool whole>
constexpr int kStepChannels = kStepPack<whole> * kWarp;

// The lane's weight of a row and head, 0 after the last.
template <bool made, typename T>
__device__ __forceinline__ float weight_of(const DepthwiseWeights<T>& weights, int64_t row,
                                           int heads, int head, int lane) {
  const bool exists = lane < weights.kernel_size;
  if constexpr (!made) {
    return exists ? weights.weights[head * weights.kernel_size + lane] : 0.0f;
  }
  const T* scores = weights.scores + (row * heads + head) * weights.kernel_size;
  const float score = exists ? to_float(scores[lane]) : -INFINITY;
  const float weight = expf(score - warp_max(score));
  return weight / warp_sum(weight);
}

// Begins to copy `columns` channels of the rows [begin, end); lane j knows where row j is.
template <bool whole, typename T, int channels>
__device__ __forceinline__ void request_rows(T (*to)[channels], const T* inputs, int64_t from,
                                             int begin, int end, int columns, int lane) {
  constexpr int kCount = whole ? 16 / sizeof(T) : 1, kAcross = channels / kCount;
  constexpr int kStep = kWarp / kAcross;  // rows at once
  const int column = lane % kAcross * kCount;
  for (int first = 0; first < end; first += kStep) {
    const int j = first + lane / kAcross;
    const T* const x = inputs + __shfl_sync(kAllLanes, from, j) + column;
    if (j < begin || j >= end || column >= columns) continue;
    if constexpr (whole) {
      copy_async(static_cast<uint32_t>(__cvta_generic_to_shared(&to[j][column])), x, true);
    } else {
      to[j][column] = *x;
    }
  }
  close_copies();
}

// made: weights are the softmax of scores, which the kernel before this one may have written.
template <bool made, bool whole, typename T>
__global__ void __launch_bounds__(kStepWarps* kWarp, 8)
    decode_depthwise_kernel(const DecodeDepthwiseParams<T> p) {
  constexpr int kPack = kStepPack<whole>, kWidth = kStepChannels<whole>;
  __shared__ alignas(16) T kept[kStepWarps][kMaxKernelSize - 1][kWidth];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int row = blockIdx.x, item = blockIdx.y * kStepWarps + warp;
  const int chunks = (p.head_dim + kWidth - 1) / kWidth;
  const int head = item / chunks, channel = item % chunks * kWidth;
  const int active_count = p.state->active_count;
  const ActiveSentence sentence = p.active[row / p.beams];
  if (row >= active_count * p.beams || head >= p.heads) {
    wait_for_previous();  // else this kernel might be over, and its successor start, before that
    return;
  }
  const int cache_row = sentence.id * p.slots + row % p.beams, position = sentence.position;
  const auto place = [&](int row, int position) {
    return ((int64_t{row} * p.heads + head) * p.ring + position % p.ring) * p.head_dim + channel;
  };
  const int last = p.weights.kernel_size - 1, begin = max(0, last - position);
  const int at = position - last + lane, columns = min(kWidth, p.head_dim - channel);
  int64_t from = 0;
  if (0 <= at && at < position) {
    from = place(
        p.cache_indirection[(int64_t{sentence.table()} * p.total_rows + cache_row) * p.history +
                            at],
        at);
  }
  T(*const inputs)[kWidth] = kept[warp];
  request_rows<whole>(inputs, p.inputs, from, begin, last, columns, lane);
  float own = 0.0f;
  if constexpr (!made) own = weight_of<made>(p.weights, row, p.heads, head, lane);
  wait_for_previous();
  let_next_start();

  const int c = lane * kPack;
  const bool exists = c < columns;
  const int64_t to = (int64_t{row} * p.heads + head) * p.head_dim + channel + c;
  Channels<kPack> newest, sum;
  if (exists) newest = Channels<kPack>(p.x + to);
  if constexpr (made) own = weight_of<made>(p.weights, row, p.heads, head, lane);
  wait_for_copies<0>();
  __syncwarp();
#pragma unroll 8
  for (int j = begin; j < last; ++j) {
    sum.add(__shfl_sync(kAllLanes, own, j), Channels<kPack>(&inputs[j][c]));
  }
  sum.add(__shfl_sync(kAllLanes, own, last), newest);
  if (!exists) return;
  newest.store(p.inputs + place(cache_row, position) + c);
  sum.store(p.y + to);
}

}  // namespace decoding::cuda
