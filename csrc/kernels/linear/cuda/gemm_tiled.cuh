// The parts of a block of gemm_tiled.cu: its tiles in shared memory, their products, and the
// epilogue from the sums to y.
#pragma once

#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/linear/cuda/quantized/widen.cuh"
#include "kernels/linear/cuda/tile.cuh"

namespace decoding::cuda::gemm_tiled {

// A variant: kRows x kColumns outputs of kParts blocks, in each by kDown x kAcross warps in
// kSplits groups.
template <int kRows_, int kColumns_, int kDown_, int kAcross_, int kSplits_, int kStages_,
          int kParts_ = 1>
struct GemmTiledConfig {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kDown = kDown_, kAcross = kAcross_,
                       kSplits = kSplits_, kStages = kStages_, kParts = kParts_;
  static constexpr int kThreads = kDown * kAcross * kSplits * kWarp;
  static constexpr int kTileRows = kRows / kDown / 16;          // mma tiles of a warp
  static constexpr int kTileColumns = kColumns / kAcross / 16;  // pairs of mma tiles of a warp
  static constexpr int kPartRows = kRows / kParts;              // that a block finishes
  static constexpr int kWidth = kColumns / kChunk;              // chunks in a row of y's tile
  static constexpr int kSumStride = kColumns + 8;  // four rows of sums fall on different banks
  static_assert(kThreads >= kColumns && kTileRows > 0 && kTileColumns > 0);
};

// W: the type of the weight, T or a quantized one.
template <typename T, typename W, typename S>
struct Shared {
  float bias[S::kColumns], scale[S::kColumns];  // scale: of a quantized weight
  union {
    struct {
      char w[S::kStages][S::kColumns * kLineBytesOf<W>];
      char x[S::kStages][S::kRows * kLineBytes];
    };
    float sums[S::kSplits][S::kRows][S::kSumStride];
  };
  T residual[S::kRows][S::kColumns];  // last: where there is none, it takes no place

  static size_t bytes(bool residual) {
    return residual ? sizeof(Shared) : offsetof(Shared, residual);
  }
};

// The row of a tile of W whose part of a line a lane reads.
template <typename W>
__device__ __forceinline__ int weight_row(int lane) {
  return sizeof(W) == 1 ? lane / 4 : lane % 8 + lane / 16 * 8;
}

// 16 inputs, the `product`-th of a line, of 16 outputs, from their lines on.
template <typename T, typename W>
__device__ __forceinline__ void load_weights(uint32_t (&to)[4], uint32_t lines, int product,
                                             int lane) {
  if constexpr (sizeof(W) == 1) {
    const uint32_t at = lines + chunk_place<W>(product, lane / 4) * 16 + lane % 4 * 4;
    const uint2 first = widen<T, W>(load_shared(at));
    const uint2 second = widen<T, W>(load_shared(at + 8 * kLineBytesOf<W>));
    to[0] = first.x, to[1] = first.y, to[2] = second.x, to[3] = second.y;
  } else {
    load_matrices(to, lines + chunk_place<W>(2 * product + lane / 8 % 2, lane) * 16);
  }
}

// sums += one step of x W^T: the products of this warp's tiles and its group's part of the inputs.
template <typename T, typename W, typename S>
__device__ __forceinline__ void multiply(float (&sums)[S::kTileRows][2 * S::kTileColumns][4],
                                         uint32_t x, uint32_t w, int split) {
  const int lane = threadIdx.x % kWarp;
  constexpr int kProducts = kSlice / 16 / S::kSplits;
#pragma unroll
  for (int product = 0; product < kProducts; ++product) {
    const int chunk = 2 * (split * kProducts + product);
    uint32_t a[S::kTileRows][4], b[S::kTileColumns][4];
#pragma unroll
    for (int i = 0; i < S::kTileRows; ++i) {
      load_matrices(a[i], x + i * 16 * kLineBytes + ((chunk + lane / 16) ^ lane % 8) * 16);
    }
#pragma unroll
    for (int j = 0; j < S::kTileColumns; ++j) {
      load_weights<T, W>(b[j], w + j * 16 * kLineBytesOf<W>, chunk / 2, lane);
    }
#pragma unroll
    for (int i = 0; i < S::kTileRows; ++i) {
#pragma unroll
      for (int j = 0; j < S::kTileColumns; ++j) {
        multiply_add<T>(sums[i][2 * j], a[i][0], a[i][1], a[i][2], a[i][3], b[j][0], b[j][1]);
        multiply_add<T>(sums[i][2 * j + 1], a[i][0], a[i][1], a[i][2], a[i][3], b[j][2], b[j][3]);
      }
    }
  }
}

// The block's sums, from the registers of its warps, times the scales of a quantized weight.
template <typename T, typename W, typename S>
__device__ __forceinline__ void store_sums(
    const float (&sums)[S::kTileRows][2 * S::kTileColumns][4], int down, int across, int split,
    Shared<T, W, S>& shared) {
  const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < S::kTileRows; ++i) {
    const int row = (down * S::kTileRows + i) * 16 + g;
#pragma unroll
    for (int j = 0; j < 2 * S::kTileColumns; ++j) {
      const int column = (across * 2 * S::kTileColumns + j) * 8 + 2 * t;
      float (*to)[S::kSumStride] = shared.sums[split];
      float2 scale{1.0f, 1.0f};
      if (sizeof(W) == 1) scale = *reinterpret_cast<const float2*>(&shared.scale[column]);
      const auto scaled = [&](float a, float b) -> float2 { return {a * scale.x, b * scale.y}; };
      *reinterpret_cast<float2*>(&to[row][column]) = scaled(sums[i][j][0], sums[i][j][1]);
      *reinterpret_cast<float2*>(&to[row + 8][column]) = scaled(sums[i][j][2], sums[i][j][3]);
    }
  }
}

// The blocks of a cluster add up their own sums, and then see each other's.
template <typename T, typename W, typename S>
__device__ __forceinline__ void combine_splits(Shared<T, W, S>& shared) {
  for (int i = threadIdx.x; i < S::kRows * S::kColumns; i += S::kThreads) {
    const int row = i / S::kColumns, column = i % S::kColumns;
    float sum = shared.sums[0][row][column];
#pragma unroll
    for (int split = 1; split < S::kSplits; ++split) sum += shared.sums[split][row][column];
    shared.sums[0][row][column] = sum;
  }
  sync_cluster();
}

// add(sums) for all that adds up to the outputs at a place; Floats: float or float4.
template <typename Floats, typename T, typename W, typename S, typename Add>
__device__ __forceinline__ void for_sums(const Shared<T, W, S>& shared, int row, int column,
                                         const Add& add) {
  if constexpr (S::kParts == 1) {
#pragma unroll
    for (int split = 0; split < S::kSplits; ++split) {
      add(*reinterpret_cast<const Floats*>(&shared.sums[split][row][column]));
    }
  } else {
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
      add(load_from_block(part, reinterpret_cast<const Floats*>(&shared.sums[0][row][column])));
    }
  }
}

// Where y and the residual can be accessed in 16 bytes: eight outputs at a time, the last of which
// may lie after the end of a row, where its stride has room for them.
template <typename T, typename W, typename S>
__device__ __forceinline__ void finish_vectors(const LinearParams<T>& p, int first_row,
                                               int first_column, const Shared<T, W, S>& shared) {
#pragma unroll 1
  for (int i = threadIdx.x; i < S::kPartRows * S::kWidth; i += S::kThreads) {
    const int row = blockIdx.z * S::kPartRows + i / S::kWidth, column = i % S::kWidth * kChunk;
    if (first_row + row >= p.rows || first_column + column >= p.weight.outputs) continue;
    float values[kChunk];
#pragma unroll
    for (int c = 0; c < kChunk; ++c) values[c] = shared.bias[column + c];
#pragma unroll
    for (int c = 0; c < kChunk; c += 4) {
      for_sums<float4>(shared, row, column + c, [&](float4 sums) {
        values[c] += sums.x, values[c + 1] += sums.y;
        values[c + 2] += sums.z, values[c + 3] += sums.w;
      });
    }
    activate<T>(values, p.activation);
    if (p.residual != nullptr) {
      const auto residual = Vector<T>::load(&shared.residual[row][column]);
#pragma unroll
      for (int c = 0; c < kChunk; ++c) values[c] += residual[c];
    }
    Vector<T> y;
#pragma unroll
    for (int c = 0; c < kChunk; ++c) y.values[c] = from_float<T>(values[c]);
    y.store(p.y + place(p, first_row + row, first_column + column));
  }
}

// Else one at a time, neighbouring lanes next to each other.
template <typename T, typename W, typename S>
__device__ __forceinline__ void finish_elements(const LinearParams<T>& p, int first_row,
                                                int first_column, const Shared<T, W, S>& shared) {
  for (int i = threadIdx.x; i < S::kPartRows * S::kColumns; i += S::kThreads) {
    const int row = blockIdx.z * S::kPartRows + i / S::kColumns, column = i % S::kColumns;
    if (first_row + row >= p.rows || first_column + column >= p.weight.outputs) continue;
    float value = shared.bias[column];
    for_sums<float>(shared, row, column, [&](float sum) { value += sum; });
    value = activate<T>(value, p.activation);
    const int64_t at = place(p, first_row + row, first_column + column);
    if (p.residual != nullptr) value += to_float(p.residual[at]);
    p.y[at] = from_float<T>(value);
  }
}

// The residual of the part of the tile that this block finishes.
template <typename T, typename W, typename S>
__device__ __forceinline__ void request_residual(const LinearParams<T>& p, int first_row,
                                                 int first_column, Shared<T, W, S>& shared) {
  for (int i = threadIdx.x; i < S::kPartRows * S::kWidth; i += S::kThreads) {
    const int row = blockIdx.z * S::kPartRows + i / S::kWidth, column = i % S::kWidth * kChunk;
    const bool valid = first_row + row < p.rows && first_column + column < p.weight.outputs;
    const int64_t at = place(p, first_row + row, first_column + column);
    copy_async(shared_address(&shared.residual[row][column]), p.residual + (valid ? at : 0), valid);
  }
}

// Steps [step, end) of the block's part of W, as far as the L2 cache.
template <typename W, typename S>
__device__ __forceinline__ void prefetch_steps(const LinearWeight& weight, int first_column,
                                               int step, int end) {
  for (int i = threadIdx.x; i < S::kColumns * (end - step); i += S::kThreads) {
    const int column = first_column + i % S::kColumns, k = (step + i / S::kColumns) * kSlice;
    if (column >= weight.outputs) continue;
    prefetch(static_cast<const W*>(weight.data) +
             static_cast<int64_t>(column) * weight_stride<W>(weight) + k);
  }
}

}  // namespace decoding::cuda::gemm_tiled
