// y = activation(norm(x) W^T + bias) + residual, or gated, for few rows: weights go from memory
// straight to the registers of the tensor cores.
//
// A block computes 16 rows by 8 * kTiles outputs; its warps share out K and add up in shared memory
// at the end. mma.m16n8k16 wants from lane (g, t) the pairs k = 2t and 2t + 8 of row or column g.
// But the order of a sum over k is free, as long as both factors agree: so lane (g, t) takes the 16
// bytes at k = 32c + 8t, whole, of weight row g and of x rows g and g + 8, and calls its first and
// second half the k of two products. No shuffle, no shared memory, full sectors, and all of a
// block's weights are under way before it waits for the kernel that writes x.
//
// All that comes after that wait is on the critical path of a step, and a lone warp takes some four
// cycles for every instruction: addresses are computed before, and the norm takes one pass and one
// barrier.
//
// In a gated product half of a block's outputs are gates, the others what passes through them.
//
// Where there are many more outputs than blocks (a vocabulary), a block goes on to its next
// outputs, their weights requested before the current ones are multiplied.
#include <algorithm>

#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/linear/cuda/gemm_families.h"
#include "kernels/linear/cuda/gemm_small.cuh"

namespace decoding::cuda {
namespace {

using namespace small_m;

// The warp's partial sums, to shared memory. A sum is split into independent chains, as a product
// waits long for the one before it.
template <typename T, typename S>
__device__ __forceinline__ void multiply(const InputFragment<T, S>& x,
                                         const WeightFragment<T, S>& weights, const Lane& lane,
                                         Shared<S>& shared) {
  constexpr int kChains = S::kChunks < 4 ? S::kChunks : 4;
#pragma unroll
  for (int i = 0; i < S::kTiles; ++i) {
    float sums[kChains][4] = {};
#pragma unroll
    for (int c = 0; c < S::kChunks; ++c) {
      const uint4 a = x.at[0][c], b = x.at[1][c], w = weights.at[i][c];
      multiply_add<T>(sums[c % kChains], a.x, b.x, a.y, b.y, w.x, w.y);
      multiply_add<T>(sums[c % kChains], a.z, b.z, a.w, b.w, w.z, w.w);
    }
#pragma unroll
    for (int chain = 1; chain < kChains; ++chain) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[0][j] += sums[chain][j];
    }
    const int column = 8 * i + 2 * lane.t;
    float (*to)[Shared<S>::kStride] = shared.partial[lane.warp];
    *reinterpret_cast<float2*>(&to[lane.g][column]) = {sums[0][0], sums[0][1]};
    *reinterpret_cast<float2*>(&to[lane.g + 8][column]) = {sums[0][2], sums[0][3]};
  }
}

// The outputs that a thread finishes: one column, every kRowStep-th row.
template <typename T, typename S>
struct Outputs {
  const int row = threadIdx.x / S::kColumns, column = threadIdx.x % S::kColumns;
  const int rows;        // of the block
  const int64_t stride;  // of y and the residual
  const int64_t at;      // of the first, for the block's first columns
  float residual[S::kSums];

  __device__ __forceinline__ explicit Outputs(const LinearParams<T>& p)
      : rows(min(kRows, p.rows - static_cast<int>(blockIdx.x) * kRows)),
        stride(p.stride > 0 ? p.stride : columns_of<S>(p.weight)),
        at((blockIdx.x * kRows + row) * stride + column) {}

  __device__ bool has(const LinearParams<T>& p, int i, int first) const {
    return row + i * S::kRowStep < rows && first + column < columns_of<S>(p.weight);
  }

  __device__ __forceinline__ void load_residual(const LinearParams<T>& p, int first) {
#pragma unroll
    for (int i = 0; i < S::kSums; ++i) {
      const T* from = p.residual + at + first + i * S::kRowStep * stride;
      residual[i] = p.residual != nullptr && has(p, i, first) ? to_float(*from) : 0.0f;
    }
  }

  // Adds up what the warps have.
  __device__ __forceinline__ void store(const LinearParams<T>& p, const Shared<S>& shared,
                                        const WeightFragment<T, S>& weights, int first) const {
#pragma unroll
    for (int i = 0; i < S::kSums; ++i) {
      if (!has(p, i, first)) break;
      float y = activate<T>(sum(shared, weights, i, 0), p.activation);
      if constexpr (S::kGated) {
        y *= sum(shared, weights, i, 1);
      } else {
        y += residual[i];
      }
      p.y[at + first + i * S::kRowStep * stride] = from_float<T>(y);
    }
  }

  // half: 1 for what passes through a gate.
  __device__ __forceinline__ float sum(const Shared<S>& shared, const WeightFragment<T, S>& weights,
                                       int i, int half) const {
    float sum = weights.bias[half];
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) {
      sum += shared.partial[w][row + i * S::kRowStep][column + half * S::kColumns];
    }
    return sum;
  }
};

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) small_m_kernel(const LinearParams<T> p) {
  extern __shared__ __align__(16) char bytes[];
  Shared<S>& shared = *reinterpret_cast<Shared<S>*>(bytes);
  const int inputs = p.weight.inputs;
  const Lane lane(S::kWarps, inputs);
  int column = blockIdx.y * S::kColumns;
  WeightFragment<T, S> weights;
  weights.request(p, lane, column);
  if constexpr (S::kNorm) {
    request_scales<S::kThreads>(shared.norm.gamma, p.norm, S::kInputs, inputs);
  }
  const float part = 1.0f / inputs;
  InputFragment<T, S> x(p, lane);
  Outputs<T, S> outputs(p);
  wait_for_previous();
  let_next_start();

  x.load(lane);
  if constexpr (S::kNorm) {
    x.load_first(lane, p.norm.rms);
    if (outputs.rows > 8) {
      norm_rows<2>(x, lane, part, p.norm, shared);
    } else {
      norm_rows<1>(x, lane, part, p.norm, shared);
    }
  }
  while (true) {
    const int next = column + gridDim.y * S::kColumns;
    WeightFragment<T, S> coming;
    if (S::kLoops) coming.request(p, lane, next);
    if constexpr (!S::kGated) outputs.load_residual(p, column);
    multiply(x, weights, lane, shared);
    __syncthreads();
    outputs.store(p, shared, weights, column);
    if (!S::kLoops || next >= columns_of<S>(p.weight)) break;
    __syncthreads();  // the partial sums are read
    weights = coming;
    column = next;
  }
  if constexpr (S::kNorm) x.store(p.normed, lane, inputs);
}

template <typename T>
struct Variant {
  int columns, threads, blocks, inputs;
  bool loops;
  size_t shared;
  void (*kernel)(LinearParams<T>);
};

template <typename T, bool kNorm, bool kGated, int kTiles, int kWarps, int kChunks,
          bool kLoops = false>
constexpr Variant<T> make_variant() {
  using S = GemmSmallConfig<kNorm, kGated, kTiles, kWarps, kChunks, kLoops>;
  return {.columns = S::kColumns,
          .threads = S::kThreads,
          .blocks = S::kBlocks,
          .inputs = S::kInputs,
          .loops = S::kLoops,
          .shared = Shared<S>::bytes(),
          .kernel = small_m_kernel<T, S>};
}

template <typename T, bool gated>
constexpr Variant<T> kPlain[] = {
    // K <= 512
    make_variant<T, false, gated, 1, 8, 2>(),
    make_variant<T, false, gated, 2, 8, 2>(),
    make_variant<T, false, gated, 4, 8, 2>(),
    make_variant<T, false, gated, 4, 8, 2, true>(),
    // K <= 768
    make_variant<T, false, gated, 1, 8, 3>(),
    make_variant<T, false, gated, 2, 8, 3>(),
    make_variant<T, false, gated, 4, 8, 3>(),
    // K <= 1024
    make_variant<T, false, gated, 1, 8, 4>(),
    make_variant<T, false, gated, 2, 8, 4>(),
    make_variant<T, false, gated, 4, 8, 4>(),
    make_variant<T, false, gated, 4, 16, 2, true>(),
    // K <= 2048
    make_variant<T, false, gated, 1, 16, 4>(),
    make_variant<T, false, gated, 2, 16, 4>(),
    // K <= 4096
    make_variant<T, false, gated, 1, 16, 8>(),
};

// A norm needs registers of its own.
template <typename T, bool gated>
constexpr Variant<T> kNormed[] = {
    // K <= 512
    make_variant<T, true, gated, 1, 8, 2>(),
    make_variant<T, true, gated, 2, 8, 2>(),
    make_variant<T, true, gated, 4, 8, 2>(),
    make_variant<T, true, gated, 4, 8, 2, true>(),
    // K <= 768
    make_variant<T, true, gated, 1, 8, 3>(),
    make_variant<T, true, gated, 2, 8, 3>(),
    make_variant<T, true, gated, 4, 8, 3>(),
    // K <= 1024
    make_variant<T, true, gated, 2, 8, 4>(),
    make_variant<T, true, gated, 4, 16, 2>(),
    make_variant<T, true, gated, 4, 16, 2, true>(),
    // K <= 2048
    make_variant<T, true, gated, 1, 16, 4>(),
    make_variant<T, true, gated, 2, 16, 4>(),
};

constexpr int kManyOutputs = 8192;  // from here on blocks may loop

// The nth variant that supports p; null after the last. Those that hold more than twice the inputs
// would leave warps without work, except the smallest.
template <typename T>
const Variant<T>* find_variant(const LinearParams<T>& p, int n) {
  if (is_quantized(p.weight.kind)) return nullptr;
  const int inputs = p.weight.inputs;
  const auto find = [&](const auto& variants) -> const Variant<T>* {
    for (const Variant<T>& variant : variants) {
      const bool wasteful = variant.inputs >= 2 * inputs && variant.inputs > variants[0].inputs;
      const bool fits =
          inputs <= variant.inputs && (!variant.loops || p.weight.outputs >= kManyOutputs);
      if (fits && !wasteful && n-- == 0) return &variant;
    }
    return nullptr;
  };
  if (p.gated != nullptr) {
    return p.norm.gamma != nullptr ? find(kNormed<T, true>) : find(kPlain<T, true>);
  }
  return p.norm.gamma != nullptr ? find(kNormed<T, false>) : find(kPlain<T, false>);
}

}  // namespace

template <typename T>
int small_m_variants(const Device&, const LinearParams<T>& p) {
  int count = 0;
  while (find_variant(p, count) != nullptr) ++count;
  return count;
}

template <typename T>
void small_m_linear(Stream& stream, const LinearParams<T>& p, int n) {
  const Variant<T>& variant = *find_variant(p, n);
  const int columns = p.gated != nullptr ? p.weight.outputs / 2 : p.weight.outputs;
  const int tiles = (columns + variant.columns - 1) / variant.columns;
  const int row_blocks = (p.rows + kRows - 1) / kRows;
  int rounds = 1;
  if (variant.loops) {  // as many blocks as run at a time, all with nearly as many tiles
    const int resident = stream.device().multiprocessors * variant.blocks / row_blocks;
    rounds = (tiles + std::max(resident, 1) - 1) / std::max(resident, 1);
  }
  // Blocks with the same weights are neighbours, so that memory is asked only once.
  launch(stream, variant.kernel, dim3(row_blocks, (tiles + rounds - 1) / rounds),
         dim3(variant.threads), variant.shared, p);
}

#define INSTANTIATE(T)                                                  \
  template int small_m_variants(const Device&, const LinearParams<T>&); \
  template void small_m_linear(Stream&, const LinearParams<T>&, int);
INSTANTIATE(half)
INSTANTIATE(bfloat16)

}  // namespace decoding::cuda
