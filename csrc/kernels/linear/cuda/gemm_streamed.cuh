// The parts of a block of gemm_streamed.cu: the ring that weights pass through, their products, and
// what it makes of the sums.
#pragma once

#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/linear/cuda/quantized/widen.cuh"
#include "kernels/linear/cuda/tile.cuh"

namespace decoding::cuda::gemm_streamed {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kPiece = 8;     // elements of x in 16 bytes
constexpr int kTileRows = 8;  // of x, in a product of the tensor cores

// A variant: at most kRows rows of x by kTiles * 16 outputs at a time, in steps of kChunks chunks,
// kStages of them under way. kDirect: x does not pass through shared memory, which takes longer
// where there is little to multiply. W: the type of the weight.
template <typename W_, bool kNorm_, bool kGated_, int kRows_, int kTiles_, int kChunks_,
          int kStages_, bool kDirect_>
struct GemmStreamedConfig {
  using W = W_;
  static constexpr bool kNorm = kNorm_, kGated = kGated_, kDirect = kDirect_;
  static constexpr bool kQuantized = sizeof(W) == 1;
  static_assert(!kNorm || !kDirect);
  static constexpr int kRows = kRows_, kTiles = kTiles_, kChunks = kChunks_, kStages = kStages_;
  static constexpr int kWide = 16 / sizeof(W);  // inputs in 16 bytes of a weight
  static constexpr int kChunk = 4 * kWide;      // inputs that a warp multiplies at a time
  static constexpr int kDepth = kChunks * kChunk;
  // That the registers of a multiprocessor are enough for.
  static constexpr int kBlocks = kRows > 8 ? 2 : 3;
  static constexpr int kRowTiles = kRows / kTileRows;
  static constexpr int kOutputs = 16 * kTiles;
  // Of y, that a block makes of them: with a gate the lower half of each tile are gates.
  static constexpr int kColumns = kGated ? kOutputs / 2 : kOutputs;
  static constexpr int kTileColumns = kGated ? 8 : 16;
  static constexpr int kRowStep = kThreads / kColumns;  // rows that the threads finish at a time
  static constexpr int kOwn = (kRows + kRowStep - 1) / kRowStep;  // outputs that a thread finishes
};

// Shared memory of a block; after it come its rows of x, as many as there are, and gamma and beta.
template <typename S>
struct Shared {
  // A row of partial sums; four rows, two apart, fall on different banks.
  static constexpr int kStride = S::kOutputs + 4;

  // A thread reads what it has copied itself.
  uint4 ring[S::kStages][S::kChunks][S::kTiles][2][kThreads];
  float partial[2][kWarps][S::kRows][kStride];  // of this tile, and of the one before
  float2 moments[S::kRows][kWarps];             // of a row, from the warps that share it
};

// Elements in a row of x: the inputs in whole steps, and a piece more, so that two rows fall on
// different banks.
template <typename S>
DECODING_EVERYWHERE constexpr int depth_of(int inputs) {
  return (inputs + S::kDepth - 1) / S::kDepth * S::kDepth;
}
template <typename S>
DECODING_EVERYWHERE constexpr int row_stride(int inputs) {
  return depth_of<S>(inputs) + kPiece;
}

template <typename T, typename S>
size_t shared_bytes(int inputs, int rows) {
  const size_t norm = S::kNorm ? 2 * sizeof(float) * depth_of<S>(inputs) : 0;
  const size_t x = S::kDirect ? 0 : sizeof(T) * rows * row_stride<S>(inputs);
  return sizeof(Shared<S>) + x + norm;
}

// A lane's place in the products, and the steps of K that its warp takes: `steps` from k on.
template <typename S>
struct Lane {
  int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
  int k, steps;

  __device__ explicit Lane(int inputs) {
    const int all = depth_of<S>(inputs) / S::kDepth, most = (all + kWarps - 1) / kWarps;
    k = warp * most * S::kDepth;
    steps = max(0, min(most, all - warp * most));
  }
};

// Columns of y.
template <typename S>
__device__ __forceinline__ int columns_of(const LinearWeight& weight) {
  return S::kGated ? weight.outputs / 2 : weight.outputs;
}

// The weights of a warp's lane, step by step, through all tiles of its block: of each tile rows g
// and g + 8, with a gate the gate's and what passes through it.
template <typename S>
class Weights {
  using W = typename S::W;

 public:
  __device__ __forceinline__ Weights(const LinearWeight& weight, const Lane<S>& lane)
      : stride_(weight_stride<W>(weight)),
        half_((S::kGated ? int64_t{weight.outputs} / 2 : 8) * stride_),
        columns_(columns_of<S>(weight)),
        steps_(lane.steps),
        begin_(lane.k + S::kWide * lane.t),
        step_(0),
        column_(blockIdx.y * S::kColumns + lane.g),
        from_(static_cast<const W*>(weight.data) + int64_t{column_} * stride_ + begin_) {}

  __device__ __forceinline__ void request_next(uint4 (&to)[S::kChunks][S::kTiles][2][kThreads]) {
    if (steps_ == 0) return;
#pragma unroll
    for (int c = 0; c < S::kChunks; ++c) {
      const int k = step_ * S::kDepth + c * S::kChunk;
      const bool inside = begin_ + k < stride_;
#pragma unroll
      for (int i = 0; i < S::kTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int column = column_ + i * S::kTileColumns + (S::kGated ? 0 : 8 * half);
          // The other half of a line of the cache comes next.
          copy_async<true>(shared_address(&to[c][i][half][threadIdx.x]),
                           from_ + k + i * S::kTileColumns * int64_t{stride_} + half * half_,
                           inside && column < columns_);
        }
      }
    }
    if (++step_ < steps_) return;
    step_ = 0;
    const int further = gridDim.y * S::kColumns;
    column_ += further;
    from_ += int64_t{further} * stride_;
  }

 private:
  const int stride_;
  const int64_t half_;
  const int columns_, steps_;
  const int begin_;  // the lane's first input
  int step_;         // the next one
  int column_;       // of the first tile, row g
  const W* from_;    // the lane's first input of that column
};

// A lane's inputs of a chunk: kWide of row g of each tile of rows.
template <typename T, typename S>
struct InputFragment {
  static constexpr int kPieces = S::kWide / kPiece;
  uint4 at[S::kRowTiles][kPieces];

  // count: the inputs that there are from k on, where x is not in shared memory, zero after them.
  __device__ __forceinline__ InputFragment(const T* const (&x)[S::kRowTiles], int k, int count) {
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const bool valid = !S::kDirect || count > i * kPiece;
        const T* const from = x[r] + k + i * kPiece;
        at[r][i] = valid ? *reinterpret_cast<const uint4*>(from) : uint4{};
      }
    }
  }
};

// sums += one chunk: the weights are the first factor, 16 outputs, and x the second, 8 rows. Each
// product takes 16 inputs, in two registers of x and of either row of the weights; the sums are in
// two chains, as a product waits long for the one before it.
template <typename T, typename S>
__device__ __forceinline__ void multiply(float (&sums)[2][S::kTiles][S::kRowTiles][4],
                                         const uint4 (&weights)[S::kTiles][2][kThreads],
                                         const InputFragment<T, S>& x) {
#pragma unroll
  for (int i = 0; i < S::kTiles; ++i) {
    const uint4 upper = weights[i][0][threadIdx.x], lower = weights[i][1][threadIdx.x];
    const auto add = [&](int chain, uint2 first, uint2 second, const auto& inputs) {
#pragma unroll
      for (int r = 0; r < S::kRowTiles; ++r) {
        const uint2 own = inputs(x.at[r]);
        multiply_add<T>(sums[chain][i][r], first.x, second.x, first.y, second.y, own.x, own.y);
      }
    };
    if constexpr (S::kQuantized) {
      const auto widened = [&](int chain, uint32_t uint4::* word) {
        add(chain, widen<T, typename S::W>(upper.*word), widen<T, typename S::W>(lower.*word),
            [&](const auto& own) { return uint2{own[0].*word, own[1].*word}; });
      };
      widened(0, &uint4::x), widened(1, &uint4::y), widened(0, &uint4::z), widened(1, &uint4::w);
    } else {
      add(0, {upper.x, upper.y}, {lower.x, lower.y},
          [](const auto& own) { return uint2{own[0].x, own[0].y}; });
      add(1, {upper.z, upper.w}, {lower.z, lower.w},
          [](const auto& own) { return uint2{own[0].z, own[0].w}; });
    }
  }
}

// The warp's sums, to shared memory, row by row.
template <typename S>
__device__ __forceinline__ void store_sums(const float (&sums)[2][S::kTiles][S::kRowTiles][4],
                                           const Lane<S>& lane,
                                           float (&to)[S::kRows][Shared<S>::kStride]) {
#pragma unroll
  for (int r = 0; r < S::kRowTiles; ++r) {
    const int row = kTileRows * r + 2 * lane.t;
#pragma unroll
    for (int i = 0; i < S::kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        to[row + j % 2][16 * i + lane.g + j / 2 * 8] = sums[0][i][r][j] + sums[1][i][r][j];
      }
    }
  }
}

// The outputs that a thread finishes: one column, every kRowStep-th row.
template <typename T, typename S>
struct Outputs {
  const int row = threadIdx.x / S::kColumns, column = threadIdx.x % S::kColumns;
  const int first_row, rows;  // of the block
  const int stride;           // of y and the residual
  float scale[S::kGated ? 2 : 1], bias[S::kGated ? 2 : 1];
  float residual[S::kOwn];

  __device__ __forceinline__ Outputs(const LinearParams<T>& p, int first_row, int rows)
      : first_row(first_row),
        rows(rows),
        stride(p.stride > 0 ? p.stride : columns_of<S>(p.weight)) {}

  // In y and in the residual.
  __device__ int64_t place(int i, int first) const {
    return int64_t{first_row + row + i * S::kRowStep} * stride + first + column;
  }

  __device__ bool has(const LinearParams<T>& p, int i, int first) const {
    return row + i * S::kRowStep < rows && first + column < columns_of<S>(p.weight);
  }

  // What belongs to the weight.
  __device__ __forceinline__ void load(const LinearWeight& weight, const float* all_bias,
                                       int first) {
    const int columns = columns_of<S>(weight), own = first + column;
#pragma unroll
    for (int half = 0; half <= S::kGated; ++half) {
      const bool valid = own < columns;
      scale[half] = 1.0f;
      if constexpr (S::kQuantized) {
        scale[half] = valid ? weight.scale[own + half * columns] : 0.0f;
      }
      bias[half] = valid && all_bias != nullptr ? all_bias[own + half * columns] : 0.0f;
    }
  }

  __device__ __forceinline__ void load_residual(const LinearParams<T>& p, int first) {
#pragma unroll
    for (int i = 0; i < S::kOwn; ++i) {
      const bool valid = p.residual != nullptr && has(p, i, first);
      residual[i] = valid ? to_float(p.residual[place(i, first)]) : 0.0f;
    }
  }

  __device__ __forceinline__ void store(
      const LinearParams<T>& p, const float (&partial)[kWarps][S::kRows][Shared<S>::kStride],
      int first) const {
#pragma unroll
    for (int i = 0; i < S::kOwn; ++i) {
      if (!has(p, i, first)) break;
      float y = activate<T>(sum(partial, i, 0), p.activation);
      if constexpr (S::kGated) {
        y *= sum(partial, i, 1);
      } else {
        y += residual[i];
      }
      p.y[place(i, first)] = from_float<T>(y);
    }
  }

 private:
  // What the warps have; half: 1 for what passes through a gate.
  __device__ __forceinline__ float sum(const float (&partial)[kWarps][S::kRows][Shared<S>::kStride],
                                       int i, int half) const {
    const int place = S::kGated ? column / 8 * 16 + column % 8 + 8 * half : column;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += partial[w][row + i * S::kRowStep][place];
    return fmaf(scale[half], sum, bias[half]);
  }
};

}  // namespace decoding::cuda::gemm_streamed
