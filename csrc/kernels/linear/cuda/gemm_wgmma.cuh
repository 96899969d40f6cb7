// The parts of a block of gemm_wgmma.cu: its tiles in shared memory, their products, and the
// epilogue from the sums to y.
#pragma once

#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/linear/cuda/tile.cuh"

namespace decoding::cuda::gemm_wgmma {

constexpr int kDepth = 2 * kSlice;  // inputs of a step
constexpr int kGroup = 4 * kWarp;   // threads that multiply together
constexpr int kThreads = 2 * kGroup;

// A variant: kRows x kColumns outputs of kParts blocks. Where the columns suffice for one
// group of warps only, the groups share the inputs of a step.
template <int kRows_, int kColumns_, int kStages_, int kParts_ = 1>
struct GemmWgmmaConfig {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kStages = kStages_, kParts = kParts_;
  static constexpr int kAcross = kColumns / 64, kSplits = 2 / kAcross;
  static constexpr int kPartRows = kRows / kParts;  // that a block finishes
  static constexpr int kWidth = kColumns / kChunk;  // pieces of 16 bytes in a row of y's tile
  static constexpr int kSumStride = kColumns + 4;   // sums of a group fall on different banks
  static constexpr int kOwn = (kPartRows * kWidth + kThreads - 1) / kThreads;  // of a thread
  static_assert(kColumns == 64 || kColumns == 128);
};

template <typename S>
struct Tiles {
  char w[S::kStages][2][S::kColumns * kLineBytes];
  char x[S::kStages][2][S::kRows * kLineBytes];
};

// The partial sums of the rows that a block finishes.
template <typename S>
using Sums = float[S::kParts * S::kSplits][S::kPartRows][S::kSumStride];

template <typename S, bool apart = (S::kParts > 1)>
struct Shared {
  union {
    Tiles<S> tiles;
    Sums<S> sums;
  };
};
template <typename S>
struct Shared<S, true> {  // others may send while this block still multiplies
  Tiles<S> tiles;
  Sums<S> sums;
};

constexpr int kAlign = 1024;  // of a tile: the permutation comes from the bits of its addresses

// A place in the shared memory of another block of the cluster.
__device__ __forceinline__ uint32_t address_in_block(unsigned block, const void* shared) {
  uint32_t there = 0;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(there)
      : "r"(shared_address(shared)), "r"(block));
#endif
  return there;
}
__device__ __forceinline__ void store_to_block(uint32_t there, float value) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
#endif
}

// As arrive_at_cluster(), for blocks that need to know only that the others have begun.
__device__ __forceinline__ void announce_to_cluster() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

// The pieces of y, eight outputs of a row, that this thread finishes.
template <typename T, typename S>
struct Pieces {
  const int first_row, first_column;
  Vector<T> residual[S::kOwn];

  __device__ __forceinline__ Pieces(int row, int column)
      : first_row(row + blockIdx.z * S::kPartRows), first_column(column) {}

  __device__ __forceinline__ static int row(int i) {
    return (threadIdx.x + i * kThreads) / S::kWidth;
  }
  __device__ __forceinline__ static int column() { return threadIdx.x % S::kWidth * kChunk; }
  __device__ __forceinline__ bool has(const LinearParams<T>& p, int i) const {
    return row(i) < S::kPartRows && first_row + row(i) < p.rows &&
           first_column + column() < p.weight.outputs;
  }

  __device__ __forceinline__ void load_residual(const LinearParams<T>& p) {
#pragma unroll
    for (int i = 0; i < S::kOwn; ++i) {
      residual[i] = {};
      if (p.residual == nullptr || !has(p, i)) continue;
      residual[i] =
          Vector<T>::load(p.residual + place(p, first_row + row(i), first_column + column()));
    }
  }

  __device__ __forceinline__ void finish(const LinearParams<T>& p, const Sums<S>& sums,
                                         const float (&bias)[kChunk]) const {
#pragma unroll
    for (int i = 0; i < S::kOwn; ++i) {
      if (!has(p, i)) continue;
      float values[kChunk];
#pragma unroll
      for (int c = 0; c < kChunk; ++c) values[c] = bias[c];
#pragma unroll
      for (int from = 0; from < S::kParts * S::kSplits; ++from) {
#pragma unroll
        for (int c = 0; c < kChunk; c += 4) {
          const auto part = *reinterpret_cast<const float4*>(&sums[from][row(i)][column() + c]);
          values[c] += part.x, values[c + 1] += part.y;
          values[c + 2] += part.z, values[c + 3] += part.w;
        }
      }
      if (p.activation == Activation::relu) {
#pragma unroll
        for (float& value : values) value = value < 0.0f ? 0.0f : value;  // NaN stays
      }
      Vector<T> y;
#pragma unroll
      for (int c = 0; c < kChunk; ++c) y.values[c] = from_float<T>(values[c] + residual[i][c]);
      y.store(p.y + place(p, first_row + row(i), first_column + column()));
    }
  }
};

// The other activations, in place: their code is long; repeated in the loops above once for
// each number, its way from memory would take longer than all that is left to do.
template <typename T, typename S>
__device__ __forceinline__ void activate_sums(const LinearParams<T>& p, int first_column,
                                              Sums<S>& sums) {
#pragma unroll 1
  for (int i = threadIdx.x; i < S::kRows * S::kColumns; i += kThreads) {
    const int row = i / S::kColumns, column = i % S::kColumns;
    float sum = sums[0][row][column];
    if (S::kSplits == 2) sum += sums[S::kSplits - 1][row][column];
    if (p.bias != nullptr && first_column + column < p.weight.outputs) {
      sum += p.bias[first_column + column];
    }
    sums[0][row][column] = activate(sum, p.activation);
    if (S::kSplits == 2) sums[S::kSplits - 1][row][column] = 0.0f;
  }
  __syncthreads();
}

template <typename T, int kCount>
__device__ __forceinline__ void request_step(Source<T, kCount, kThreads>& source,
                                             const char (&to)[2][kCount * kLineBytes]) {
  source.request_next(to[0]);
  source.request_next(to[1]);
}

// sums += what this group of warps does of a step.
template <typename T, typename S>
__device__ __forceinline__ void multiply(float (&sums)[S::kRows / 8][4], const Shared<S>& shared,
                                         int stage, int group) {
  const auto add = [&](int slice, int across) {
    const uint64_t w =
        wgmma_tile(shared_address(shared.tiles.w[stage][slice]) + across * 64 * kLineBytes);
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

// A thread's sums, to the blocks that finish their rows.
template <typename S>
__device__ __forceinline__ void send_sums(const float (&sums)[S::kRows / 8][4], int group,
                                          Sums<S>& to) {
  const int lane = threadIdx.x % kWarp,
            from = blockIdx.z * S::kSplits + (S::kSplits == 2 ? group : 0);
  const int column =
      (S::kAcross == 2 ? group * 64 : 0) + threadIdx.x % kGroup / kWarp * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < S::kRows / 8; ++j) {
    const int row = 8 * j % S::kPartRows + lane % 4 * 2;
    float* const at = &to[from][row][column];
    if constexpr (S::kParts == 1) {
      at[0] = sums[j][0], at[S::kSumStride] = sums[j][1];
      at[8] = sums[j][2], at[S::kSumStride + 8] = sums[j][3];
    } else {
      const uint32_t there = address_in_block(8 * j / S::kPartRows, at);
      store_to_block(there, sums[j][0]), store_to_block(there + 4 * S::kSumStride, sums[j][1]);
      store_to_block(there + 32, sums[j][2]),
          store_to_block(there + 4 * S::kSumStride + 32, sums[j][3]);
    }
  }
}

}  // namespace decoding::cuda::gemm_wgmma
