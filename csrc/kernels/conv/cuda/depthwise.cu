// Depthwise convolution; the contract is in depthwise.h. A warp takes a head, each lane
// neighbouring channels of it, and beforehand one weight of its kernel.
//
// Packed rows: a warp computes kRun tokens, one after the other. An input that it has fetched
// stays in registers for all of them that see it: a window of kRun inputs moves on by one with each
// weight. The warps of a block take neighbouring tokens, so that what they both see comes from
// memory once.
#include "kernels/conv/depthwise.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

namespace decoding {
namespace cuda {
namespace {

constexpr int kRun = 8;    // tokens of a warp
constexpr int kWarps = 8;  // of a block, in the packed pass
constexpr int kStepWarps = 4;
constexpr int kWeights = 4;  // that are fetched at once
using Next = Vector<float, kWeights>;
static_assert(kMaxKernelSize == kWarp);

__device__ __forceinline__ int lane_id() { return threadIdx.x % kWarp; }
__device__ __forceinline__ int warp_id() { return threadIdx.x / kWarp; }

// The lane's weight of a row and head, 0 after the last. All lanes of a warp must take part.
template <bool made, typename T>
__device__ __forceinline__ float weight_of(const DepthwiseWeights<T>& weights, int64_t row,
                                           int heads, int head) {
  const int j = lane_id();
  const bool exists = j < weights.kernel_size;
  if constexpr (!made) return exists ? weights.weights[head * weights.kernel_size + j] : 0.0f;
  const T* scores = weights.scores + (row * heads + head) * weights.kernel_size;
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

  __device__ __forceinline__ void add(float weight, const Channels& x) {
#pragma unroll
    for (int i = 0; i < pack; ++i) values[i] = fmaf(weight, x.values[i], values[i]);
  }

  template <typename T>
  __device__ __forceinline__ void store(T* to) const {
    Vector<T, pack> rounded;
#pragma unroll
    for (int i = 0; i < pack; ++i) rounded.values[i] = from_float<T>(values[i]);
    rounded.store(to);
  }
};

// made: weights are the softmax of scores, other ones for each token. pack: channels of a lane.
template <bool made, int pack, typename T>
__global__ void __launch_bounds__(kWarps* kWarp, 2)
    packed_depthwise_kernel(const PackedDepthwiseParams<T> p) {
  constexpr int kRows = made ? kRun : 1;  // of weights
  __shared__ alignas(16) float memory[kWarps][kRows][kMaxKernelSize];
  wait_for_previous();
  let_next_start();
  const int sentence = blockIdx.x, head = blockIdx.z, size = p.weights.kernel_size;
  const int64_t row = p.offsets[sentence];
  const int length = p.offsets[sentence + 1] - row;
  const int first = (blockIdx.y * kWarps + warp_id()) * kRun, end = min(first + kRun, length);
  if (first >= length) return;
  auto& weights = memory[warp_id()];
#pragma unroll 1
  for (int r = 0; r < min(kRows, end - first); ++r) {
    weights[r][lane_id()] = weight_of<made>(p.weights, row + first + r, p.heads, head);
  }
  __syncwarp();

  const int left = p.causal ? size - 1 : size / 2;
  const int64_t stride = int64_t{p.heads} * p.head_dim;
  for (int c = lane_id() * pack; c < p.head_dim; c += kWarp * pack) {
    const int64_t column = head * p.head_dim + c;
    const T* x = p.x + row * stride + column;
    const auto input = [&](int i) {  // counted from the first one of the first token
      const int at = first - left + i;
      return 0 <= at && at < length ? Channels<pack>(x + at * stride) : Channels<pack>();
    };
    Channels<pack> sums[kRun], window[kRun];
    Next next[kRows];  // weights
#pragma unroll
    for (int i = 0; i < kRun; ++i) window[i] = input(i);
#pragma unroll 1
    for (int j = 0; j < size; j += kRun) {
#pragma unroll
      for (int u = 0; u < kRun; ++u) {
        if (j + u >= size) break;
        if (u % kWeights == 0) {
#pragma unroll
          for (int r = 0; r < kRows; ++r) next[r] = Next::load(weights[r] + j + u);
        }
#pragma unroll
        for (int r = 0; r < kRun; ++r) {
          sums[r].add(next[made ? r : 0][u % kWeights], window[(r + u) % kRun]);
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

// A warp for each row and head. A lane finds out where the input of its weight lies; those of
// earlier steps are older than the kernel before, and so are weights, but not scores.
template <bool made, int pack, typename T>
__global__ void __launch_bounds__(kStepWarps* kWarp, 8)
    decode_depthwise_kernel(const DecodeDepthwiseParams<T> p) {
  const int row = blockIdx.x, head = blockIdx.y * kStepWarps + warp_id();
  const int live_count = p.state->live_count;
  const ActiveSentence sentence = p.active[row / p.beams];
  if (row >= live_count * p.beams || head >= p.heads) {
    wait_for_previous();  // else this kernel might be over, and its successor start, before that
    return;
  }
  const int cache_row = sentence.id * p.slots + row % p.beams, position = sentence.position;
  const auto place = [&](int row, int position) {
    return ((int64_t{row} * p.heads + head) * p.ring + position % p.ring) * p.head_dim;
  };
  const int last = p.weights.kernel_size - 1, begin = max(0, last - position);
  const int at = position - last + lane_id();
  int64_t from = 0;
  if (0 <= at && at < position) {
    from = place(
        p.cache_indirection[(int64_t{sentence.table()} * p.total_rows + cache_row) * p.history +
                            at],
        at);
  }
  if constexpr (made) wait_for_previous();
  const float own = weight_of<made>(p.weights, row, p.heads, head);

  for (int first = 0; first < p.head_dim; first += kWarp * pack) {
    const int c = first + lane_id() * pack;
    const bool exists = c < p.head_dim;
    Channels<pack> sum;
#pragma unroll 8
    for (int j = begin; j < last; ++j) {
      const T* x = p.inputs + __shfl_sync(kAllLanes, from, j) + c;
      const float weight = __shfl_sync(kAllLanes, own, j);
      if (exists) sum.add(weight, Channels<pack>(x));
    }
    wait_for_previous();
    let_next_start();
    const float weight = __shfl_sync(kAllLanes, own, last);
    if (!exists) continue;
    const int64_t to = (int64_t{row} * p.heads + head) * p.head_dim + c;
    const Channels<pack> newest(p.x + to);
    newest.store(p.inputs + place(cache_row, position) + c);
    sum.add(weight, newest);
    sum.store(p.y + to);
  }
}

// Calls use<made, pack>(): two channels of a lane where they lie side by side everywhere.
template <typename T, typename Use>
void choose(const DepthwiseWeights<T>& weights, bool pairs, Use&& use) {
  if (weights.scores != nullptr) {
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
  cuda::choose(p.weights, pairs && p.head_dim % 2 == 0, [&]<bool made, int pack>() {
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
  cuda::choose(p.weights, pairs && p.head_dim % 2 == 0, [&]<bool made, int pack>() {
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
