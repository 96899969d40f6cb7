// The epilogue of gemm_wgmma.cu: the sums' way from the registers through shared memory, that of
// other blocks too, to y.
#pragma once

#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/linear/cuda/gemm_wgmma.cuh"

namespace decoding::cuda::gemm_wgmma {

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
  __device__ __forceinline__ bool has_column(const LinearParams<T>& p) const {
    return first_column + column() < columns_of<S>(p.weight);
  }
  __device__ __forceinline__ bool has(const LinearParams<T>& p, int i) const {
    return row(i) < S::kPartRows && first_row + row(i) < p.rows && has_column(p);
  }
  __device__ __forceinline__ int64_t at(const LinearParams<T>& p, int i) const {
    return place(p, columns_of<S>(p.weight), first_row + row(i), first_column + column());
  }

  __device__ __forceinline__ void load_residual(const LinearParams<T>& p) {
#pragma unroll
    for (int i = 0; i < S::kOwn; ++i) {
      residual[i] = {};
      if (p.residual == nullptr || !has(p, i)) continue;
      residual[i] = Vector<T>::load(p.residual + at(p, i));
    }
  }

  __device__ __forceinline__ void finish(const LinearParams<T>& p, const Sums<S>& sums,
                                         const float (&bias)[kChunk]) const {
#pragma unroll
    for (int i = 0; i < S::kOwn; ++i) {
      if (!has(p, i)) continue;
      float values[kChunk];
      add_up(values, bias, sums, row(i), column());
      if (p.activation == Activation::relu) {
#pragma unroll
        for (float& value : values) value = value < 0.0f ? 0.0f : value;  // NaN stays
      }
      Vector<T> y;
#pragma unroll
      for (int c = 0; c < kChunk; ++c) y.values[c] = from_float<T>(values[c] + residual[i][c]);
      y.store(p.y + at(p, i));
    }
  }

  // Not unrolled: the code of an activation is long.
  __device__ __forceinline__ void finish_gated(const LinearParams<T>& p,
                                               const Sums<S>& sums) const {
    float gate_bias[kChunk] = {}, bias[kChunk] = {};
    if (p.bias != nullptr && has_column(p)) {
      const float* const own = p.bias + first_column + column();
#pragma unroll
      for (int c = 0; c < kChunk; ++c) {
        gate_bias[c] = own[c], bias[c] = own[columns_of<S>(p.weight) + c];
      }
    }
#pragma unroll 1
    for (int i = 0; i < S::kOwn; ++i) {
      if (!has(p, i)) continue;
      float gates[kChunk], values[kChunk];
      add_up(gates, gate_bias, sums, row(i), column());
      add_up(values, bias, sums, row(i), S::kFinished + column());
      activate<T>(gates, p.activation);
      Vector<T> y;
#pragma unroll
      for (int c = 0; c < kChunk; ++c) y.values[c] = from_float<T>(gates[c] * values[c]);
      y.store(p.y + at(p, i));
    }
  }

 private:
  __device__ __forceinline__ static void add_up(float (&values)[kChunk],
                                                const float (&bias)[kChunk], const Sums<S>& sums,
                                                int row, int column) {
#pragma unroll
    for (int c = 0; c < kChunk; ++c) values[c] = bias[c];
#pragma unroll
    for (int from = 0; from < S::kParts * S::kSplits; ++from) {
#pragma unroll
      for (int c = 0; c < kChunk; c += 4) {
        const auto part = *reinterpret_cast<const float4*>(&sums[from][row][column + c]);
        values[c] += part.x, values[c + 1] += part.y;
        values[c + 2] += part.z, values[c + 3] += part.w;
      }
    }
  }
};

// The other activations, in place: their code is long; repeated in the loops above once for
// each number, its way from memory would take longer than all that is left to do. Four numbers at
// a time do not wait for each other.
template <typename T, typename S>
__device__ __forceinline__ void activate_sums(const LinearParams<T>& p, int first_column,
                                              Sums<S>& sums) {
  constexpr int kAtOnce = 4, kWidth = S::kColumns / kAtOnce;
#pragma unroll 1
  for (int i = threadIdx.x; i < S::kRows * kWidth; i += kThreads) {
    const int row = i / kWidth, column = i % kWidth * kAtOnce;
    float values[kAtOnce];
#pragma unroll
    for (int c = 0; c < kAtOnce; ++c) {
      const int output = first_column + column + c;
      values[c] = p.bias != nullptr && output < p.weight.outputs ? p.bias[output] : 0.0f;
#pragma unroll
      for (int split = 0; split < S::kSplits; ++split) values[c] += sums[split][row][column + c];
    }
    activate<T>(values, p.activation);
#pragma unroll
    for (int c = 0; c < kAtOnce; ++c) {
      sums[0][row][column + c] = values[c];
      if (S::kSplits == 2) sums[S::kSplits - 1][row][column + c] = 0.0f;
    }
  }
  __syncthreads();
}

// Of the outputs of the block, the first that this thread has sums of in a tile of its group; the
// other is eight further.
template <typename S>
__device__ __forceinline__ int own_column(int group, int tile) {
  const int across = S::kSplits == 2 ? 0 : group * S::kTiles + tile;
  return across * kTileColumns + threadIdx.x % kGroup / kWarp * 16 + threadIdx.x % kWarp / 4;
}

// The scales of these outputs, of a quantized weight.
template <typename S>
struct Scales {
  float at[S::kTiles][2];

  __device__ __forceinline__ Scales(const LinearWeight& weight, int first_column, int group) {
    if constexpr (S::kQuantized) {
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int own = own_column<S>(group, tile) + 8 * i, half = own / S::kFinished;
          const int column = first_column + own % S::kFinished, columns = columns_of<S>(weight);
          at[tile][i] = column < columns ? weight.scale[half * columns + column] : 0.0f;
        }
      }
    }
  }
};

// A thread's sums, times the scales, to the blocks that finish their rows.
template <typename S>
__device__ __forceinline__ void send_sums(const ThreadSums<S>& sums, const Scales<S>& scales,
                                          int group, Sums<S>& to) {
  const int from = blockIdx.z * S::kSplits + (S::kSplits == 2 ? group : 0);
#pragma unroll
  for (int tile = 0; tile < S::kTiles; ++tile) {
    const int column = own_column<S>(group, tile);
    const auto scaled = [&](float sum, int i) {
      return S::kQuantized ? sum * scales.at[tile][i] : sum;
    };
#pragma unroll
    for (int j = 0; j < S::kRows / 8; ++j) {
      const int row = 8 * j % S::kPartRows + threadIdx.x % 4 * 2;
      float* const at = &to[from][row][column];
      const float (&own)[4] = sums[tile][j];
      const float values[4] = {scaled(own[0], 0), scaled(own[1], 0), scaled(own[2], 1),
                               scaled(own[3], 1)};
      if constexpr (S::kParts == 1) {
        at[0] = values[0], at[S::kSumStride] = values[1];
        at[8] = values[2], at[S::kSumStride + 8] = values[3];
      } else {
        const uint32_t there = address_in_block(8 * j / S::kPartRows, at);
        store_to_block(there, values[0]), store_to_block(there + 4 * S::kSumStride, values[1]);
        store_to_block(there + 32, values[2]),
            store_to_block(there + 4 * S::kSumStride + 32, values[3]);
      }
    }
  }
}

}  // namespace decoding::cuda::gemm_wgmma
