// Depthwise convolution; the contract is in depthwise.h. A warp takes a head, each lane
// neighbouring channels of it, and beforehand one of its taps.
//
// Packed rows: a warp computes kRun tokens, one behind the other. An input that it has fetched
// stays in registers for all of them that see it: a window of kRun inputs moves on by one with each
// tap. The warps of a block take neighbouring tokens, so that what they both see comes from memory
// once.
#include "kernels/conv/depthwise.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

namespace decoding {
namespace cuda {
namespace {

constexpr int kRun = 8;    // tokens of a warp
constexpr int kWarps = 8;  // of a block, in the packed pass
constexpr int kStepWarps = 4;
constexpr int kTaps = 4;  // that are fetched at once
using Next = Vector<float, kTaps>;
static_assert(kMaxTaps == kWarp);

__device__ __forceinline__ int lane_id() { return threadIdx.x % kWarp; }
__device__ __forceinline__ int warp_id() { return threadIdx.x / kWarp; }

// The lane's tap of a row and head, 0 behind the last. All lanes of a warp must take part.
template <bool made, typename T>
__device__ __forceinline__ float tap_of(const Taps<T>& taps, int64_t row, int heads, int head) {
  const int j = lane_id();
  const bool exists = j < taps.size;
  if constexpr (!made) return exists ? taps.weights[head * taps.size + j] : 0.0f;
  const T* scores = taps.scores + (row * heads + head) * taps.size;
  const float score = exists ? to_float(scores[j]) : -INFINITY;
  const float weight = expf(score - warp_max(score));
  return weight / warp_sum(weight);
}

// Neighbouring channels, in float.
template <int pack>
struct Channels {
  float values[pack] = {};

  Channels() = default;
  template <typename T>
  __device__ __forceinline__ explicit Channels(const T* from) {
    const auto found = Vector<T, pack>::load(from);
#pragma unroll
    for (int i = 0; i < pack; ++i) values[i] = found[i];
  }

  __device__ __forceinline__ void add(float tap, const Channels& x) {
#pragma unroll
    for (int i = 0; i < pack; ++i) values[i] = fmaf(tap, x.values[i], values[i]);
  }

  template <typename T>
  __device__ __forceinline__ void store(T* to) const {
    Vector<T, pack> rounded;
#pragma unroll
    for (int i = 0; i < pack; ++i) rounded.values[i] = from_float<T>(values[i]);
    rounded.store(to);
  }
};

// made: taps are made from scores, anew for each token. pack: channels of a lane.
template <bool made, int pack, typename T>
__global__ void __launch_bounds__(kWarps* kWarp, 2)
    packed_depthwise_kernel(const PackedDepthwiseParams<T> p) {
  constexpr int kRows = made ? kRun : 1;  // of taps
  __shared__ alignas(16) float memory[kWarps][kRows][kMaxTaps];
  wait_for_previous();
  let_next_start();
  const int sentence = blockIdx.x, head = blockIdx.z, size = p.taps.size;
  const int64_t row = p.offsets[sentence];
  const int length = p.offsets[sentence + 1] - row;
  const int first = (blockIdx.y * kWarps + warp_id()) * kRun, end = min(first + kRun, length);
  if (first >= length) return;
  auto& taps = memory[warp_id()];
#pragma unroll 1
  for (int r = 0; r < min(kRows, end - first); ++r) {
    taps[r][lane_id()] = tap_of<made>(p.taps, row + first + r, p.heads, head);
  }
  __syncwarp();

  const int left = p.causal ? size - 1 : size / 2;
  const int64_t stride = int64_t{p.heads} * p.head_dim;
  for (int c = lane_id() * pack; c < p.head_dim; c += kWarp * pack) {
    const int64_t column = head * p.head_dim + c;
    const T* x = p.x + row * stride + column;
    const auto input = [&](int i) {  // behind the one that the first token's first tap falls on
      const int at = first - left + i;
      return 0 <= at && at < length ? Channels<pack>(x + at * stride) : Channels<pack>();
    };
    Channels<pack> sums[kRun], window[kRun];
    Next next[kRows];  // taps
#pragma unroll
    for (int i = 0; i < kRun; ++i) window[i] = input(i);
#pragma unroll 1
    for (int j = 0; j < size; j += kRun) {
#pragma unroll
      for (int u = 0; u < kRun; ++u) {
        if (j + u >= size) break;
        if (u % kTaps == 0) {
#pragma unroll
          for (int r = 0; r < kRows; ++r) next[r] = Next::load(taps[r] + j + u);
        }
#pragma unroll
        for (int r = 0; r < kRun; ++r) {
          sums[r].add(next[made ? r : 0][u % kTaps], window[(r + u) % kRun]);
        }
        window[u] = input(j + u + kRun);
      }
    }
    T* y = p.y + (row + first) * stride + column;
#pragma unroll
    for (int r = 0; r < kRun; ++r) {
      if (first + r < end) sums[r].store(y + r * stride);
    }
  }
}

// A warp for each row and head. A lane finds out where its tap's input lies; those of earlier steps
// are older than the kernel before, and so are weights, but not scores.
template <bool made, int pack, typename T>
__global__ void __launch_bounds__(kStepWarps* kWarp, 8)
    decode_depthwise_kernel(const DecodeDepthwiseParams<T> p) {
  const StepState now = *p.now;
  const int row = blockIdx.x, head = blockIdx.y * kStepWarps + warp_id();
  if (row >= now.live_count * p.beams || head >= p.heads) {
    wait_for_previous();  // else this kernel might be over, and its successor start, before that
    return;
  }
  const int own = p.live[row / p.beams] * p.beams + row % p.beams;
  const auto place = [&](int slot, int position) {
    return ((int64_t{slot} * p.heads + head) * p.ring + position % p.ring) * p.head_dim;
  };
  const int last = p.taps.size - 1, begin = max(0, last - now.position);
  const int at = now.position - last + lane_id();
  int64_t from = 0;
  if (0 <= at && at < now.position) {
    from = place(p.slots[(int64_t{now.number % 2} * p.total_slots + own) * p.history + at], at);
  }
  if constexpr (made) wait_for_previous();
  const float tap = tap_of<made>(p.taps, row, p.heads, head);

  for (int first = 0; first < p.head_dim; first += kWarp * pack) {
    const int c = first + lane_id() * pack;
    const bool exists = c < p.head_dim;
    Channels<pack> sum;
#pragma unroll 8
    for (int j = begin; j < last; ++j) {
      const T* x = p.inputs + __shfl_sync(kAllLanes, from, j) + c;
      const float weight = __shfl_sync(kAllLanes, tap, j);
      if (exists) sum.add(weight, Channels<pack>(x));
    }
    wait_for_previous();
    let_next_start();
    const float weight = __shfl_sync(kAllLanes, tap, last);
    if (!exists) continue;
    const int64_t to = (int64_t{row} * p.heads + head) * p.head_dim + c;
    const Channels<pack> newest(p.x + to);
    newest.store(p.inputs + place(own, now.position) + c);
    sum.add(weight, newest);
    sum.store(p.y + to);
  }
}

// Calls use<made, pack>(): two channels of a lane where they lie side by side everywhere.
template <typename T, typename Use>
void choose(const Taps<T>& taps, bool pairs, Use&& use) {
  if (taps.scores != nullptr) {
    return pairs ? use.template operator()<true, 2>() : use.template operator()<true, 1>();
  }
  pairs ? use.template operator()<false, 2>() : use.template operator()<false, 1>();
}

}  // namespace
}  // namespace cuda

template <typename T>
void packed_depthwise(cuda::Stream& stream, const PackedDepthwiseParams<T>& p) {
  if (p.sentences == 0 || p.longest == 0) return;
  constexpr int kTokens = cuda::kWarps * cuda::kRun;  // of a block
  const dim3 grid(p.sentences, (p.longest + kTokens - 1) / kTokens, p.heads);
  const bool pairs = cuda::aligned16<T>(p.x, 0) && cuda::aligned16<T>(p.y, 0);
  cuda::choose(p.taps, pairs && p.head_dim % 2 == 0, [&]<bool made, int pack>() {
    cuda::launch(stream, cuda::packed_depthwise_kernel<made, pack, T>, grid,
                 dim3(cuda::kWarps * cuda::kWarp), 0, p);
  });
}

template <typename T>
void decode_depthwise(cuda::Stream& stream, const DecodeDepthwiseParams<T>& p) {
  const int rows = p.sentences * p.beams;
  if (rows == 0) return;
  const dim3 grid(rows, (p.heads + cuda::kStepWarps - 1) / cuda::kStepWarps);
  const bool pairs =
      cuda::aligned16<T>(p.x, 0) && cuda::aligned16<T>(p.inputs, 0) && cuda::aligned16<T>(p.y, 0);
  cuda::choose(p.taps, pairs && p.head_dim % 2 == 0, [&]<bool made, int pack>() {
    cuda::launch(stream, cuda::decode_depthwise_kernel<made, pack, T>, grid,
                 dim3(cuda::kStepWarps * cuda::kWarp), 0, p);
  });
}

#define INSTANTIATE(T)                                                            \
  template void packed_depthwise(cuda::Stream&, const PackedDepthwiseParams<T>&); \
  template void decode_depthwise(cuda::Stream&, const DecodeDepthwiseParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
