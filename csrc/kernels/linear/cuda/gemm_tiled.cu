// y = activation(x W^T + bias) + residual for more rows: tiles of x and W pass through shared
// memory to the tensor cores. Norm and gate are passes of their own here: in every block of a row
// of tiles a norm would cost more.
//
// A block computes kRows x kColumns of y. K goes in steps of 64, a line of 128 bytes for each row
// of a tile; kStages steps are under way by cp.async, and those of W begin before the wait for the
// kernel that writes x; the rest of W comes as near as the L2 cache meanwhile. In a line the
// 16-byte chunks are permuted by the row (chunk ^ row % 8), so that ldmatrix finds eight rows in
// eight different bank groups. kSplits groups of warps share the products of a step, so that a
// small tile has work for as many warps as hide each other's waits. The sums go through shared
// memory once more, so that bias, residual and y are read and written in 16 bytes.
//
// Where tiles are few and K is long, the kParts blocks of a cluster share out K, and each then adds
// up some rows of all their sums.
//
// The bits of an output depend on kSplits and kParts, not on the shape of the tile: every variant
// goes through K in the same steps and multiplies by one instruction, mma.m16n8k16, whose sums are
// alike for all rows and columns of it; then come the bias and the groups' sums, in order. So the
// variants with `one_order` are one to a caller that wants a row's bits to be the same among any
// number of others.
//
// Quantized weights pass through shared memory as they are, and are widened on their way to the
// registers; sums are multiplied by the outputs' scales as they leave them.
#include "kernels/cuda/launch.cuh"
#include "kernels/linear/cuda/gemm_families.h"
#include "kernels/linear/cuda/gemm_tiled.cuh"

namespace decoding::cuda {
namespace {

using namespace gemm_tiled;

// vectorized: y and the residual can be accessed in 16 bytes.
template <typename T, typename W, typename S>
__global__ void __launch_bounds__(S::kThreads)
    tiled_kernel(const LinearParams<T> p, bool vectorized) {
  extern __shared__ __align__(128) char bytes[];
  Shared<T, W, S>& shared = *reinterpret_cast<Shared<T, W, S>*>(bytes);
  const int inputs = p.weight.inputs, outputs = p.weight.outputs;
  const int all_steps = (inputs + kSlice - 1) / kSlice;
  const int part_steps = (all_steps + S::kParts - 1) / S::kParts,
            first_step = blockIdx.z * part_steps;
  const int steps = min(part_steps, all_steps - first_step);  // of this block; may be negative
  const int first_row = blockIdx.x * S::kRows, first_column = blockIdx.y * S::kColumns;

  Source<W, S::kColumns, S::kThreads> w(static_cast<const W*>(p.weight.data), first_column, outputs,
                                        weight_stride<W>(p.weight), first_step * kSlice);
#pragma unroll
  for (int stage = 0; stage < S::kStages - 1; ++stage) {
    if (stage < steps) w.request_next(shared.w[stage]);
  }
  prefetch_steps<W, S>(p.weight, first_column, first_step + S::kStages - 1, first_step + steps);
  const int own_column = first_column + threadIdx.x;
  const bool has_bias = threadIdx.x < S::kColumns && own_column < outputs && p.bias != nullptr;
  const float own_bias = has_bias ? p.bias[own_column] : 0.0f;
  float own_scale = 0.0f;
  if (sizeof(W) == 1 && threadIdx.x < S::kColumns && own_column < outputs) {
    own_scale = p.weight.scale[own_column];
  }
  Source<T, S::kRows, S::kThreads> x(p.x, first_row, p.rows, inputs, first_step * kSlice);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int split = warp / (S::kDown * S::kAcross);
  const int down = warp / S::kAcross % S::kDown, across = warp % S::kAcross;
  const int x_row = down * S::kTileRows * 16 + lane % 16;
  const int w_row = across * S::kTileColumns * 16 + weight_row<W>(lane);
  wait_for_previous();
  let_next_start();

#pragma unroll
  for (int stage = 0; stage < S::kStages - 1; ++stage) {
    if (stage < steps) x.request_next(shared.x[stage]);
    if (stage == S::kStages - 2 && vectorized && p.residual != nullptr) {
      request_residual(p, first_row, first_column, shared);
    }
    close_copies();
  }
  if (threadIdx.x < S::kColumns) {
    shared.bias[threadIdx.x] = own_bias;
    if (sizeof(W) == 1) shared.scale[threadIdx.x] = own_scale;
  }

  float sums[S::kTileRows][2 * S::kTileColumns][4] = {};
  int stage = 0;
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<S::kStages - 2>();
    __syncthreads();  // this step has arrived, and all have read the one before
    multiply<T, W, S>(sums, shared_address(shared.x[stage]) + x_row * kLineBytes,
                      shared_address(shared.w[stage]) + w_row * kLineBytesOf<W>, split);
    const int free = stage == 0 ? S::kStages - 1 : stage - 1;
    if (step + S::kStages - 1 < steps) {
      w.request_next(shared.w[free]);
      x.request_next(shared.x[free]);
    }
    close_copies();
    stage = stage == S::kStages - 1 ? 0 : stage + 1;
  }
  wait_for_copies<0>();
  __syncthreads();  // the tiles are read, their place takes the sums
  store_sums<T, W, S>(sums, down, across, split, shared);
  __syncthreads();
  if constexpr (S::kParts > 1) combine_splits(shared);
  if (vectorized) {
    finish_vectors(p, first_row, first_column, shared);
  } else {
    finish_elements(p, first_row, first_column, shared);
  }
  if constexpr (S::kParts > 1) sync_cluster();  // a block's sums stay until all have read them
}

constexpr int kOneOrderSplits = 2;  // suits small and large tiles

template <typename T>
struct Variant {
  int rows, columns, parts, threads;
  bool one_order;
  size_t (*shared)(bool residual);
  void (*kernel)(LinearParams<T>, bool vectorized);
};

template <typename T, typename W, typename S>
constexpr Variant<T> make_variant() {
  return {.rows = S::kRows,
          .columns = S::kColumns,
          .parts = S::kParts,
          .threads = S::kThreads,
          .one_order = S::kParts == 1 && S::kSplits == kOneOrderSplits,
          .shared = Shared<T, W, S>::bytes,
          .kernel = tiled_kernel<T, W, S>};
}

template <typename T, typename W>
constexpr Variant<T> kVariants[] = {
    make_variant<T, W, GemmTiledConfig<32, 32, 2, 1, 4, 6>>(),
    make_variant<T, W, GemmTiledConfig<64, 32, 2, 1, 4, 6>>(),
    make_variant<T, W, GemmTiledConfig<32, 32, 2, 1, 2, 6>>(),
    make_variant<T, W, GemmTiledConfig<64, 64, 2, 2, 2, 5>>(),
    make_variant<T, W, GemmTiledConfig<128, 64, 2, 2, 2, 4>>(),
    make_variant<T, W, GemmTiledConfig<128, 128, 2, 4, 1, 3>>(),
    make_variant<T, W, GemmTiledConfig<128, 64, 2, 1, 2, 4>>(),
    make_variant<T, W, GemmTiledConfig<128, 128, 2, 2, 1, 3>>(),
    make_variant<T, W, GemmTiledConfig<32, 32, 2, 1, 4, 6, 4>>(),
    make_variant<T, W, GemmTiledConfig<64, 32, 2, 1, 4, 6, 4>>(),
    make_variant<T, W, GemmTiledConfig<64, 64, 2, 2, 2, 5, 4>>(),
    make_variant<T, W, GemmTiledConfig<128, 64, 2, 2, 2, 4, 4>>(),
};

// The nth variant that supports p; null after the last. A part of K should have a few steps.
template <typename T>
const Variant<T>* find_variant(const Device& device, const LinearParams<T>& p, int n) {
  if (p.norm.gamma != nullptr || p.gated != nullptr) return nullptr;
  const auto find = [&](const auto& variants) -> const Variant<T>* {
    for (const Variant<T>& variant : variants) {
      const bool in_parts = device.hopper() && p.weight.inputs >= 2 * kSlice * variant.parts;
      const bool supported = variant.shared(true) <= static_cast<size_t>(device.shared_memory) &&
                             (variant.parts == 1 || in_parts);
      if (supported && n-- == 0) return &variant;
    }
    return nullptr;
  };
  switch (p.weight.kind) {
    case WeightKind::int8:
      return find(kVariants<T, int8_t>);
    case WeightKind::float8:
      return find(kVariants<T, Float8>);
    default:
      return find(kVariants<T, T>);
  }
}

}  // namespace

template <typename T>
int tiled_variants(const Device& device, const LinearParams<T>& p) {
  int count = 0;
  while (find_variant(device, p, count) != nullptr) ++count;
  return count;
}

template <typename T>
void tiled_linear(Stream& stream, const LinearParams<T>& p, int n) {
  const Variant<T>& variant = *find_variant(stream.device(), p, n);
  const dim3 grid((p.rows + variant.rows - 1) / variant.rows,
                  (p.weight.outputs + variant.columns - 1) / variant.columns, variant.parts);
  const int64_t stride = p.stride > 0 ? p.stride : p.weight.outputs;
  const bool vectorized = aligned16<T>(p.y, stride) && aligned16<T>(p.residual, stride);
  launch_clusters(stream, variant.kernel, dim3(1, 1, variant.parts), grid, dim3(variant.threads),
                  variant.shared(vectorized && p.residual != nullptr), p, vectorized);
}

template <typename T>
bool tiled_in_one_order(const Device& device, const LinearParams<T>& p, int n) {
  return find_variant(device, p, n)->one_order;
}

#define INSTANTIATE(T)                                                \
  template int tiled_variants(const Device&, const LinearParams<T>&); \
  template void tiled_linear(Stream&, const LinearParams<T>&, int);   \
  template bool tiled_in_one_order(const Device&, const LinearParams<T>&, int);
INSTANTIATE(half)
INSTANTIATE(bfloat16)

}  // namespace decoding::cuda
