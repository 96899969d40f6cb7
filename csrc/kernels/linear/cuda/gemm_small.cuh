// The operands that a block of gemm_small.cu holds in registers: its weights, and its rows of x,
// normed where the product has a norm.
#pragma once

#include "kernels/cuda/tensor_core.cuh"
#include "kernels/linear/linear.h"

namespace decoding::cuda::small_m {

constexpr int kRows = 16;   // of a block
constexpr int kChunk = 32;  // inputs that a warp multiplies at a time, 8 in a lane

template <bool kNorm_, bool kGated_, int kTiles_, int kWarps_, int kChunks_, bool kLoops_ = false>
struct GemmSmallConfig {
  static constexpr int kTiles = kTiles_, kWarps = kWarps_, kChunks = kChunks_;
  static constexpr bool kNorm = kNorm_, kGated = kGated_;
  // Whether a block may go on to further outputs, which needs registers for their weights.
  static constexpr bool kLoops = kLoops_;
  static constexpr int kThreads = kWarps * kWarp, kOutputs = 8 * kTiles;
  // Of y, that a block makes of them: with a gate the first half of its outputs are gates.
  static constexpr int kColumns = kGated ? kOutputs / 2 : kOutputs;
  // At a time on a multiprocessor: room for the next kernel's blocks to come in early.
  static constexpr int kBlocks = (kTiles <= 2 && kChunks <= 2 ? 768 : 512) / kThreads;
  static constexpr int kInputs = kWarps * kChunks * kChunk;  // at most
  static constexpr int kRowStep = kThreads / kColumns;  // rows that the threads finish at a time
  static constexpr int kSums = (kRows + kRowStep - 1) / kRowStep;  // that a thread finishes
};

// Shared memory of a block.
template <typename S>
struct Shared {
  // A row of partial sums; an odd multiple of 8 words, so that four rows fall on different banks.
  static constexpr int kStride = 8 * (S::kTiles % 2 == 1 ? S::kTiles : S::kTiles + 1);

  float partial[S::kWarps][kRows][kStride];
  struct {
    float2 moments[S::kWarps][kRows];
    float gamma[S::kInputs], beta[S::kInputs];  // zeros after the end
  } norm;                                       // last: without a norm, it takes no place

  static constexpr size_t bytes() { return S::kNorm ? sizeof(Shared) : offsetof(Shared, norm); }
};

// A lane's place in the tiles, and its chunks of K: [0, chunks) from k on.
struct Lane {
  int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
  int k, chunks;

  __device__ Lane(int warps, int inputs) {
    const int all = (inputs + kChunk - 1) / kChunk, most = (all + warps - 1) / warps;
    k = warp * most * kChunk + 8 * t;
    chunks = max(0, min(most, (inputs - k + kChunk - 1) / kChunk));
  }
};

// Columns of y.
template <typename S>
__device__ __forceinline__ int columns_of(const LinearWeight& weight) {
  return S::kGated ? weight.outputs / 2 : weight.outputs;
}

// The bias and the weights of a block for its columns of y.
template <typename T, typename S>
struct WeightFragment {
  static constexpr Keep kKeep = S::kLoops ? Keep::evict_first : Keep::normal;

  uint4 at[S::kTiles][S::kChunks];
  float bias[S::kGated ? 2 : 1];  // of what this thread finishes

  __device__ __forceinline__ void request(const LinearParams<T>& p, const Lane& lane, int column) {
    const int inputs = p.weight.inputs, columns = columns_of<S>(p.weight);
#pragma unroll
    for (int i = 0; i < S::kTiles; ++i) {
      const int place = 8 * i + lane.g, half = S::kGated ? place / S::kColumns : 0;
      const int n = column + place - half * S::kColumns, chunks = n < columns ? lane.chunks : 0;
      const T* from = static_cast<const T*>(p.weight.data) +
                      static_cast<int64_t>(n + half * columns) * inputs + lane.k;
#pragma unroll
      for (int c = 0; c < S::kChunks; ++c) {
        at[i][c] = request_weight<kKeep>(from + c * kChunk, c < chunks);
      }
    }
    const int own = column + threadIdx.x % S::kColumns;
#pragma unroll
    for (int half = 0; half <= S::kGated; ++half) {
      bias[half] = p.bias != nullptr && own < columns ? p.bias[own + half * columns] : 0.0f;
    }
  }
};

// f(i, pair) over the four pairs of 16 bytes, which it may change.
template <typename F>
__device__ __forceinline__ void for_pairs(uint4& bits, const F& f) {
  f(0, bits.x), f(1, bits.y), f(2, bits.z), f(3, bits.w);
}

// A lane's part of rows g and g + 8 of x.
template <typename T, typename S>
struct InputFragment {
  const T* from[2];
  int chunks[2];  // that there are: 0 for rows after the last
  uint4 at[2][S::kChunks];
  float first[2];  // element of the row, which sums are relative to; 0 for an RMS norm

  // Before the wait.
  __device__ __forceinline__ InputFragment(const LinearParams<T>& p, const Lane& lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = blockIdx.x * kRows + lane.g + 8 * h;
      from[h] = p.x + static_cast<int64_t>(row) * p.weight.inputs;
      chunks[h] = row < p.rows ? lane.chunks : 0;
      if (chunks[h] > 0) prefetch(from[h] + lane.k);
    }
  }

  __device__ __forceinline__ void load(const Lane& lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int c = 0; c < S::kChunks; ++c) {
        const T* const chunk = from[h] + lane.k + c * kChunk;
        at[h][c] = c < chunks[h] ? *reinterpret_cast<const uint4*>(chunk) : uint4{};
      }
    }
  }

  // The first elements; places after the end take them too, so that they do not count in sums
  // relative to the first.
  __device__ __forceinline__ void load_first(const Lane& lane, bool rms) {
#pragma unroll
    for (int h = 0; h < 2; ++h) first[h] = chunks[h] > 0 && !rms ? to_float(*from[h]) : 0.0f;
    if (lane.chunks == S::kChunks) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t pair = pack<T>({first[h], first[h]});
#pragma unroll
      for (int c = 0; c < S::kChunks; ++c) {
        if (c >= lane.chunks) at[h][c] = {pair, pair, pair, pair};
      }
    }
  }

  // The blocks that have the same rows store the rows together, each a chunk of K; where blocks are
  // fewer than chunks, the first stores all.
  __device__ __forceinline__ void store(T* to, const Lane& lane, int inputs) const {
    const bool shared = gridDim.y * kChunk >= inputs;
    if (!shared && blockIdx.y > 0) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = blockIdx.x * kRows + lane.g + 8 * h;
#pragma unroll
      for (int c = 0; c < S::kChunks; ++c) {
        const int k = lane.k + c * kChunk;
        if (c < chunks[h] && (!shared || k / kChunk == blockIdx.y)) {
          *reinterpret_cast<uint4*>(to + static_cast<int64_t>(row) * inputs + k) = at[h][c];
        }
      }
    }
  }
};

// x = norm(x) for kGroups x 8 rows, in one pass. part: 1 / K.
//
// Sums are relative to the row's first element s: no element is further from the mean than sqrt(K)
// deviations, so (mean - s)^2 <= K variance, and the subtraction of such squares in float32 costs
// at most 2048 of 2^24 parts of the variance. An RMS norm has 0 in the place of both s and mean.
template <int kGroups, typename T, typename S>
__device__ __forceinline__ void norm_rows(InputFragment<T, S>& x, const Lane& lane, float part,
                                          const Norm& norm, Shared<S>& shared) {
#pragma unroll
  for (int h = 0; h < kGroups; ++h) {
    float2 even{}, odd{};  // sums and sums of squares
#pragma unroll
    for (int c = 0; c < S::kChunks; ++c) {
      for_pairs(x.at[h][c], [&](int, uint32_t pair) {
        const float2 values = unpack<T>(pair);
        const float a = values.x - x.first[h], b = values.y - x.first[h];
        even = {even.x + a, fmaf(a, a, even.y)};
        odd = {odd.x + b, fmaf(b, b, odd.y)};
      });
    }
    const float2 sums = {warp_sum<4>(even.x + odd.x), warp_sum<4>(even.y + odd.y)};
    if (lane.t == 0) shared.norm.moments[lane.warp][lane.g + 8 * h] = sums;
  }
  wait_for_copies<0>();
  __syncthreads();
#pragma unroll
  for (int h = 0; h < kGroups; ++h) {
    float2 sums{};
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) {
      const float2 own = shared.norm.moments[w][lane.g + 8 * h];
      sums = {sums.x + own.x, sums.y + own.y};
    }
    const float distance = sums.x * (norm.rms ? 0.0f : part), mean = x.first[h] + distance;
    const float variance = sums.y * part - distance * distance;
    const float scale = rsqrtf((variance < 0.0f ? 0.0f : variance) + norm.eps);
#pragma unroll
    for (int c = 0; c < S::kChunks; ++c) {
      const float* gamma = shared.norm.gamma + lane.k + c * kChunk;
      const float* beta = shared.norm.beta + lane.k + c * kChunk;
      for_pairs(x.at[h][c], [&](int i, uint32_t& pair) {
        const float2 factor = *reinterpret_cast<const float2*>(gamma + 2 * i);
        const float2 shift = *reinterpret_cast<const float2*>(beta + 2 * i);
        const float2 values = unpack<T>(pair);
        pair = pack<T>({fmaf(values.x - mean, scale * factor.x, shift.x),
                        fmaf(values.y - mean, scale * factor.y, shift.y)});
      });
    }
  }
}

}  // namespace decoding::cuda::small_m
