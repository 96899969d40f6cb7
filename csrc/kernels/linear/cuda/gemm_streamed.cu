// y = activation(norm(x) W^T + bias) + residual, or gated, for few rows and a weight that is
// quantized or large: it streams from memory through shared memory to the registers of the tensor
// cores.
//
// A block computes 16 kTiles outputs of up to kRows rows at a time; its warps share out K and add
// up in shared memory. Weights are the first factor of mma.m16n8k16, so that eight rows of x are
// enough for it. The order of a sum over K is free, as long as both factors agree: lane (g, t)
// takes 16 bytes of outputs g and g + 8, whole, and the same inputs of x from shared memory. Of a
// quantized weight they are 16 inputs, which in the order of linear.h are four products; in 16 bits
// eight, two products, in each of which neighbouring pairs stand for those that are eight apart.
//
// Each thread copies the bytes that it will read itself, by cp.async into a ring of kStages steps:
// no barrier, and many bytes under way with few registers. Blocks are as many as run at a time, and
// go on from tile to tile; their rings run ahead into the next one.
//
// A kernel starts while the one before it runs, so that its rings fill early. Where its blocks are
// no more than multiprocessors, the hardware then gives two or three to those with the most room,
// and leaves others without, half of them in a chain of such kernels. So these blocks ask for more
// than half of a multiprocessor's shared memory, and each has one of its own.
//
// The sum is multiplied by a quantized output's scale once, in float32.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/linear/cuda/gemm_families.h"
#include "kernels/linear/cuda/gemm_streamed.cuh"
#include "kernels/linear/cuda/gemm_streamed_rows.cuh"

namespace decoding::cuda {
namespace {

using namespace gemm_streamed;

template <typename T, typename S>
__global__ void __launch_bounds__(kThreads, S::kBlocks)
    streamed_kernel(const LinearParams<T> p, int block_rows) {
  extern __shared__ __align__(16) char bytes[];
  Shared<S>& shared = *reinterpret_cast<Shared<S>*>(bytes);
  const int inputs = p.weight.inputs;
  const int depth = depth_of<S>(inputs), stride = row_stride<S>(inputs);
  T* const x = reinterpret_cast<T*>(bytes + sizeof(Shared<S>));
  float* const gamma = reinterpret_cast<float*>(x + block_rows * stride);
  const int first_row = blockIdx.x * block_rows, rows = min(block_rows, p.rows - first_row);
  const Lane<S> lane(inputs);
  Weights<S> weights(p.weight, lane);
  if constexpr (S::kNorm) request_scales<kThreads>(gamma, p.norm, depth, inputs);
#pragma unroll
  for (int stage = 0; stage < S::kStages; ++stage) {
    weights.request_next(shared.ring[stage]);
    close_copies();
  }
  const Rows<T, S> given(p, first_row, rows, x);
  int column = blockIdx.y * S::kColumns;
  Outputs<T, S> outputs(p, first_row, rows);
  outputs.load(p.weight, p.bias, column);
  wait_for_previous();
  let_next_start();

  if constexpr (!S::kDirect) given.load(p.norm, shared);
  if constexpr (S::kNorm) {
    wait_for_copies<S::kStages>();  // gamma and beta
    __syncthreads();
    given.normalize(p.norm, shared, gamma, gamma + depth, p.normed);
  }
  if constexpr (!S::kDirect) __syncthreads();
  const int begin = lane.k + S::kWide * lane.t;
  const T* own[S::kRowTiles];  // where there is no such row, another one's numbers are as good
#pragma unroll
  for (int r = 0; r < S::kRowTiles; ++r) {
    const int row = min(kTileRows * r + lane.g, rows - 1);
    own[r] = begin + (S::kDirect ? p.x + int64_t{first_row + row} * inputs : x + row * stride);
  }
  int stage = 0;
  for (int parity = 0;; parity ^= 1) {
    if constexpr (!S::kGated) outputs.load_residual(p, column);
    float sums[2][S::kTiles][S::kRowTiles][4] = {};
    for (int step = 0; step < lane.steps; ++step) {
      wait_for_copies<S::kStages - 1>();
#pragma unroll
      for (int c = 0; c < S::kChunks; ++c) {
        const int k = step * S::kDepth + c * S::kChunk;
        const InputFragment<T, S> fragment(own, k, inputs - begin - k);
        multiply<T, S>(sums, shared.ring[stage][c], fragment);
      }
      weights.request_next(shared.ring[stage]);
      close_copies();
      stage = stage == S::kStages - 1 ? 0 : stage + 1;
    }
    store_sums<S>(sums, lane, shared.partial[parity][lane.warp]);
    __syncthreads();
    outputs.store(p, shared.partial[parity], column);
    column += gridDim.y * S::kColumns;
    if (column >= columns_of<S>(p.weight)) break;
    outputs.load(p.weight, p.bias, column);
  }
  wait_for_copies<0>();
}

template <typename T>
struct Variant {
  int columns, rows;
  int blocks;  // on a multiprocessor, where its shared memory is enough
  size_t (*shared)(int inputs, int rows);
  void (*kernel)(LinearParams<T>, int block_rows);

  // That a block can have at a time.
  int most_rows(const Device& device, int inputs) const {
    int most = rows;
    while (most > 0 && shared(inputs, most) > static_cast<size_t>(device.shared_memory)) --most;
    return most;
  }
};

template <typename T, typename W, bool kNorm, bool kGated, int kRows, int kTiles, int kChunks,
          int kStages, bool kDirect = false>
constexpr Variant<T> make_variant(int blocks) {
  using S = GemmStreamedConfig<W, kNorm, kGated, kRows, kTiles, kChunks, kStages, kDirect>;
  return {.columns = S::kColumns,
          .rows = S::kRows,
          .blocks = blocks,
          .shared = shared_bytes<T, S>,
          .kernel = streamed_kernel<T, S>};
}

template <typename T, typename W, bool gated>
constexpr Variant<T> kDirect[] = {
    make_variant<T, W, false, gated, 8, 1, 1, 2, true>(2),
    make_variant<T, W, false, gated, 8, 2, 1, 2, true>(2),
    make_variant<T, W, false, gated, 16, 1, 1, 2, true>(2),
};
constexpr int kMostDirect = 1024;  // inputs

// Numbers of a weight in 16 bits: for fewer gemm_small.cu is faster.
constexpr int64_t kFewestStreamed = 4 << 20;

// Rows, tiles, chunks and stages, and blocks on a multiprocessor.
template <typename T, typename W, bool norm, bool gated>
constexpr Variant<T> kVariants[] = {
    make_variant<T, W, norm, gated, 8, 2, 1, 4>(1),
    make_variant<T, W, norm, gated, 8, 2, 1, 4>(2),
    make_variant<T, W, norm, gated, 8, 1, 1, 4>(2),
    make_variant<T, W, norm, gated, 8, 1, 1, 8>(1),
    make_variant<T, W, norm, gated, 8, 1, 1, 8>(2),
    make_variant<T, W, norm, gated, 8, 1, 2, 4>(1),
    make_variant<T, W, norm, gated, 8, 1, 2, 4>(2),
    make_variant<T, W, norm, gated, 8, 1, 4, 4>(1),
    make_variant<T, W, norm, gated, 8, 2, 2, 4>(1),
    make_variant<T, W, norm, gated, 16, 1, 1, 6>(2),
    make_variant<T, W, norm, gated, 16, 2, 1, 3>(1),
};

template <typename T, typename W>
const Variant<T>* find_variant_of(const Device& device, const LinearParams<T>& p, int n) {
  const auto find = [&](const auto& variants) -> const Variant<T>* {
    for (const Variant<T>& variant : variants) {
      if (variant.most_rows(device, p.weight.inputs) > 0 && n-- == 0) return &variant;
    }
    return nullptr;
  };
  const bool gated = p.gated != nullptr;
  if (p.norm.gamma != nullptr) {
    return gated ? find(kVariants<T, W, true, true>) : find(kVariants<T, W, true, false>);
  }
  if constexpr (sizeof(W) == 1) {
    if (p.weight.inputs <= kMostDirect) {
      const Variant<T>* direct = gated ? find(kDirect<T, W, true>) : find(kDirect<T, W, false>);
      if (direct != nullptr) return direct;
    }
  }
  return gated ? find(kVariants<T, W, false, true>) : find(kVariants<T, W, false, false>);
}

// The nth variant that supports p; null after the last.
template <typename T>
const Variant<T>* find_variant(const Device& device, const LinearParams<T>& p, int n) {
  switch (p.weight.kind) {
    case WeightKind::int8:
      return find_variant_of<T, int8_t>(device, p, n);
    case WeightKind::float8:
      return find_variant_of<T, Float8>(device, p, n);
    default: {
      const bool large = int64_t{p.weight.outputs} * p.weight.inputs >= kFewestStreamed;
      return large ? find_variant_of<T, T>(device, p, n) : nullptr;
    }
  }
}

}  // namespace

template <typename T>
int streamed_variants(const Device& device, const LinearParams<T>& p) {
  int count = 0;
  while (find_variant(device, p, count) != nullptr) ++count;
  return count;
}

template <typename T>
void streamed_linear(Stream& stream, const LinearParams<T>& p, int n) {
  const Device& device = stream.device();
  const Variant<T>& variant = *find_variant(device, p, n);
  const int columns = p.gated != nullptr ? p.weight.outputs / 2 : p.weight.outputs;
  const int tiles = (columns + variant.columns - 1) / variant.columns;
  const int most = variant.most_rows(device, p.weight.inputs);
  const int row_blocks = (p.rows + most - 1) / most;
  const int block_rows = (p.rows + row_blocks - 1) / row_blocks;
  size_t shared = variant.shared(p.weight.inputs, block_rows);
  const int fitting = static_cast<int>(device.shared_memory / shared);
  const int resident = device.multiprocessors * std::min(fitting, variant.blocks) / row_blocks;
  const int rounds = (tiles + std::max(resident, 1) - 1) / std::max(resident, 1);
  if (variant.blocks == 1 || tiles * row_blocks <= device.multiprocessors) {
    shared = std::max(shared, size_t(device.shared_memory) / 2 + 1);
  }
  // Blocks with the same weights are neighbours, so that memory is asked only once.
  launch(stream, variant.kernel, dim3(row_blocks, (tiles + rounds - 1) / rounds), dim3(kThreads),
         shared, p, block_rows);
}

#define INSTANTIATE(T)                                                   \
  template int streamed_variants(const Device&, const LinearParams<T>&); \
  template void streamed_linear(Stream&, const LinearParams<T>&, int);
INSTANTIATE(half)
INSTANTIATE(bfloat16)

}  // namespace decoding::cuda
