// The parts of a block of gemm_wgmma.cu: its tiles in shared memory, and the products of a weight
// in 16 bits.
#pragma once

#include "kernels/cuda/wgmma.cuh"
#include "kernels/linear/cuda/tile.cuh"

namespace decoding::cuda::gemm_wgmma {

constexpr int kGroup = 4 * kWarp;  // threads that multiply together
constexpr int kThreads = 2 * kGroup;
constexpr int kTileColumns = 64;  // outputs in a product of a group

// A variant: kRows x kColumns outputs of kParts blocks. Where the columns suffice for one
// group of warps only, the groups share the inputs of a step. W: the type of the weight.
template <typename W_, int kRows_, int kColumns_, int kStages_, int kParts_ = 1,
          bool kGated_ = false>
struct GemmWgmmaConfig {
  using W = W_;
  static constexpr bool kQuantized = sizeof(W) == 1, kGated = kGated_;
  static constexpr int kRows = kRows_, kColumns = kColumns_, kStages = kStages_, kParts = kParts_;
  static constexpr int kAcross = kColumns / kTileColumns, kSplits = kAcross == 1 ? 2 : 1;
  static constexpr int kTiles = kAcross * kSplits / 2;  // of the columns, that a group multiplies
  static constexpr int kSlices = kQuantized && kSplits == 1 ? 1 : 2;
  static constexpr int kDepth = kSlices * kSlice;  // inputs of a step
  // Steps that are on their way at first. Products of quantized weights still read a stage while
  // the next one's begin, so that the one after it is the first to fill it again.
  static constexpr int kAhead = kQuantized ? kStages - 2 : kStages;
  // Of y, that the outputs become: with a gate the first half of them are gates.
  static constexpr int kFinished = kGated ? kColumns / 2 : kColumns;
  static constexpr int kPartRows = kRows / kParts;   // that a block finishes
  static constexpr int kWidth = kFinished / kChunk;  // pieces of 16 bytes in a row of y's tile
  static constexpr int kSumStride = kColumns + 4;    // sums of a group fall on different banks
  static constexpr int kOwn = (kPartRows * kWidth + kThreads - 1) / kThreads;  // of a thread
  // Whether the residual is fetched before the products: with many sums registers do not suffice.
  static constexpr bool kEarlyResidual = 4 * kOwn + kTiles * kRows / 2 <= 96;
  static_assert(kAcross == 1 || kAcross == 2 || (kQuantized && kAcross == 4));
};

template <typename S>
struct Tiles {
  char w[S::kStages][S::kSlices][S::kColumns * kLineBytesOf<typename S::W>];
  char x[S::kStages][S::kSlices][S::kRows * kLineBytes];
};

// The partial sums of the rows that a block finishes.
template <typename S>
using Sums = float[S::kParts * S::kSplits][S::kPartRows][S::kSumStride];

constexpr int kAlign = 1024;  // of a tile: the permutation comes from the bits of its addresses
constexpr size_t kMostShared = 227 << 10;  // bytes of a block on Hopper

// Whether there is room for the sums that the other blocks of a cluster send while this one still
// multiplies.
template <typename S>
constexpr bool kApart = S::kParts > 1 && sizeof(Tiles<S>) + sizeof(Sums<S>) + kAlign <= kMostShared;

template <typename S, bool apart = kApart<S>>
struct Shared {
  union {
    Tiles<S> tiles;
    Sums<S> sums;
  };
};
template <typename S>
struct Shared<S, true> {
  Tiles<S> tiles;
  Sums<S> sums;
};

// Columns of y.
template <typename S>
__device__ __forceinline__ int columns_of(const LinearWeight& weight) {
  return S::kGated ? weight.outputs / 2 : weight.outputs;
}

// The way of a block's outputs of W to shared memory: from `first` on, with a gate of the gates and
// of what passes through them.
template <typename S>
class WeightSource {
 public:
  using W = typename S::W;

  __device__ __forceinline__ WeightSource(const LinearWeight& weight, int first, int k)
      : gates_(static_cast<const W*>(weight.data), first, columns_of<S>(weight),
               weight_stride<W>(weight), k),
        passing_(static_cast<const W*>(weight.data), columns_of<S>(weight) + first, weight.outputs,
                 weight_stride<W>(weight), k) {}

  __device__ __forceinline__ void request_next(const char (&tile)[S::kColumns * kLineBytesOf<W>]) {
    constexpr int kBytes = S::kFinished * kLineBytesOf<W>;
    gates_.request_next(reinterpret_cast<const char (&)[kBytes]>(tile));
    if constexpr (S::kGated) {
      passing_.request_next(reinterpret_cast<const char (&)[kBytes]>(tile[kBytes]));
    }
  }

 private:
  Source<W, S::kFinished, kThreads> gates_, passing_;  // without a gate all, and nothing
};

template <typename S, int kSlices, int kBytes>
__device__ __forceinline__ void request_step(S& source, const char (&to)[kSlices][kBytes]) {
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) source.request_next(to[slice]);
}

// What a thread has of a group's sums.
template <typename S>
using ThreadSums = float[S::kTiles][S::kRows / 8][4];

// sums += what this group of warps does of a step.
template <typename T, typename S>
__device__ __forceinline__ void multiply(float (&sums)[S::kRows / 8][4], const Shared<S>& shared,
                                         int stage, int group) {
  const auto add = [&](int slice, int across) {
    const uint64_t w = wgmma_tile(shared_address(shared.tiles.w[stage][slice]) +
                                  across * kTileColumns * kLineBytes);
    const uint64_t x = wgmma_tile(shared_address(shared.tiles.x[stage][slice]));
#pragma unroll
    for (int product = 0; product < kSlice / 16; ++product) {
      wgmma<T>(sums, w + 2 * product, x + 2 * product);
    }
  };
  if constexpr (S::kSplits == 2) {
    add(group, 0);
  } else {
    add(0, group);
    add(1, group);
  }
}

// sums += all steps of a weight in 16 bits.
template <typename T, typename S>
__device__ __forceinline__ void multiply_steps(ThreadSums<S>& sums, Shared<S>& shared,
                                               WeightSource<S>& w, Source<T, S::kRows, kThreads>& x,
                                               int steps, int group) {
  int stage = 0;
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<S::kStages - 1>();
    wgmma_see_copies();
    __syncthreads();
    wgmma_begin();
    multiply<T, S>(sums[0], shared, stage, group);
    wgmma_close();
    if (step + S::kStages < steps) {
      wgmma_wait<0>(sums[0]);
      __syncthreads();  // all have read this stage
      request_step(w, shared.tiles.w[stage]);
      request_step(x, shared.tiles.x[stage]);
    }
    close_copies();
    stage = stage == S::kStages - 1 ? 0 : stage + 1;
  }
  wgmma_wait<0>(sums[0]);
}

}  // namespace decoding::cuda::gemm_wgmma
