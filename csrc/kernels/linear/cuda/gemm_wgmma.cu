// y = activation(x W^T + bias) + residual for tens to hundreds of rows on Hopper, by its tensor
// cores' own instruction, wgmma.
//
// A block computes kColumns outputs of kRows rows: W is the instruction's first factor, 64 outputs
// for each group of four warps, and x its second, so that tiles may have few rows. K goes in steps
// of 128, each two slices of 64: a slice is a line of 128 bytes for each row of a tile, its 16-byte
// chunks permuted by the row (chunk ^ row % 8), as the instruction expects it. The first steps of W
// are on their way before the wait for the kernel that writes x; where K has no more, all that is
// left after it is to fetch x, which is why tiles rather have many columns than many rows. The
// sums go through shared memory once more, so that bias, residual and y are read and written in
// 16 bytes.
//
// Where tiles are few and K is long, the kParts blocks of a cluster share out K, and each finishes
// some rows: all send it their sums for them, since to send is faster than to ask.
//
// Quantized weights pass through shared memory as they are, in lines of 64 bytes, and are widened
// on their way to registers, where the instruction takes its first factor, too. Beside half the
// bytes of W, those of x, which every block of its rows reads, count for more: so there are tiles
// of more columns. Steps are of 64 inputs where no groups share them. The sums are multiplied by
// the outputs' scales as they leave the registers. These kernels take a gate along, too: half a
// tile's outputs are gates.
#include "kernels/cuda/launch.cuh"
#include "kernels/linear/cuda/gemm_families.h"
#include "kernels/linear/cuda/gemm_wgmma.cuh"
#include "kernels/linear/cuda/gemm_wgmma_sums.cuh"
#include "kernels/linear/cuda/quantized/gemm_wgmma_w8a16.cuh"

namespace decoding::cuda {
namespace {

using namespace gemm_wgmma;

template <typename T, typename S>
__global__ void __launch_bounds__(kThreads) wgmma_kernel(const LinearParams<T> p) {
  extern __shared__ __align__(16) char bytes[];
  char* const aligned = bytes + (kAlign - shared_address(bytes) % kAlign) % kAlign;
  Shared<S>& shared = *reinterpret_cast<Shared<S>*>(aligned);
  if constexpr (kApart<S>) announce_to_cluster();
  const int inputs = p.weight.inputs, columns = columns_of<S>(p.weight);
  const int all_steps = (inputs + S::kDepth - 1) / S::kDepth;
  const int part_steps = (all_steps + S::kParts - 1) / S::kParts,
            first_step = blockIdx.z * part_steps;
  const int steps = min(part_steps, all_steps - first_step);  // of this block; may be negative
  const int first_row = blockIdx.x * S::kRows, first_column = blockIdx.y * S::kFinished;

  WeightSource<S> w(p.weight, first_column, first_step * S::kDepth);
#pragma unroll
  for (int stage = 0; stage < S::kAhead; ++stage) {
    if (stage < steps) request_step(w, shared.tiles.w[stage]);
  }
  Pieces<T, S> pieces(first_row, first_column);
  float bias[kChunk] = {};
  if (!S::kGated && p.bias != nullptr && first_column + pieces.column() < columns) {
#pragma unroll
    for (int c = 0; c < kChunk; ++c) {
      bias[c] = first_column + pieces.column() + c < columns
                    ? p.bias[first_column + pieces.column() + c]
                    : 0.0f;
    }
  }
  Source<T, S::kRows, kThreads> x(p.x, first_row, p.rows, inputs, first_step * S::kDepth);
  const int group = __shfl_sync(~0u, threadIdx.x / kGroup, 0);  // known to be the warp's
  const Scales<S> scales(p.weight, first_column, group);
  wait_for_previous();
  let_next_start();

#pragma unroll
  for (int stage = 0; stage < S::kAhead; ++stage) {
    if (stage < steps) request_step(x, shared.tiles.x[stage]);
    close_copies();
  }
  if constexpr (S::kEarlyResidual) pieces.load_residual(p);

  ThreadSums<S> sums = {};
  if constexpr (S::kQuantized) {
    multiply_w8a16<T, S>(sums, shared, w, x, steps, group);
  } else {
    multiply_steps<T, S>(sums, shared, w, x, steps, group);
  }
  wait_for_copies<0>();
  if constexpr (S::kParts == 1) {
    __syncthreads();  // the tiles are read, their place takes the sums
  } else if constexpr (kApart<S>) {
    wait_for_cluster();  // all blocks have begun
  } else {
    sync_cluster();  // all blocks have read their tiles
  }
  send_sums<S>(sums, scales, group, shared.sums);
  if constexpr (!S::kEarlyResidual) pieces.load_residual(p);
  if constexpr (S::kParts > 1) {
    sync_cluster();
  } else {
    __syncthreads();
  }
  if constexpr (S::kParts == 1 && !S::kGated) {
    if (p.activation != Activation::none && p.activation != Activation::relu) {
      activate_sums<T, S>(p, first_column, shared.sums);
#pragma unroll
      for (float& value : bias) value = 0.0f;
    }
  }
  if constexpr (S::kGated) {
    pieces.finish_gated(p, shared.sums);
  } else {
    pieces.finish(p, shared.sums, bias);
  }
}

template <typename T>
struct Variant {
  int rows, columns, parts, depth;
  size_t shared;
  void (*kernel)(LinearParams<T>);
};

// Columns of y.
template <typename T>
int columns_of(const LinearParams<T>& p) {
  return p.gated != nullptr ? p.weight.outputs / 2 : p.weight.outputs;
}

template <typename T, typename S>
constexpr Variant<T> make_variant() {
  static_assert(sizeof(Shared<S>) + kAlign <= kMostShared);
  return {S::kRows,          S::kFinished, S::kParts, S::kDepth, sizeof(Shared<S>) + kAlign,
          wgmma_kernel<T, S>};
}

template <typename T>
constexpr Variant<T> kVariants[] = {
    make_variant<T, GemmWgmmaConfig<T, 32, 64, 4>>(),
    make_variant<T, GemmWgmmaConfig<T, 32, 128, 4>>(),
    make_variant<T, GemmWgmmaConfig<T, 64, 64, 4>>(),
    make_variant<T, GemmWgmmaConfig<T, 64, 128, 4>>(),
    make_variant<T, GemmWgmmaConfig<T, 128, 64, 4>>(),
    make_variant<T, GemmWgmmaConfig<T, 128, 128, 3>>(),
    make_variant<T, GemmWgmmaConfig<T, 32, 64, 4, 2>>(),
    make_variant<T, GemmWgmmaConfig<T, 64, 64, 4, 2>>(),
    make_variant<T, GemmWgmmaConfig<T, 64, 128, 4, 2>>(),
    make_variant<T, GemmWgmmaConfig<T, 32, 64, 4, 4>>(),
    make_variant<T, GemmWgmmaConfig<T, 32, 128, 4, 4>>(),
    make_variant<T, GemmWgmmaConfig<T, 64, 64, 4, 4>>(),
    make_variant<T, GemmWgmmaConfig<T, 64, 128, 4, 4>>(),
};

// W: int8 or e4m3.
template <typename T, typename W>
constexpr Variant<T> kQuantizedVariants[] = {
    make_variant<T, GemmWgmmaConfig<W, 32, 64, 6>>(),
    make_variant<T, GemmWgmmaConfig<W, 64, 64, 4>>(),
    make_variant<T, GemmWgmmaConfig<W, 128, 64, 5>>(),
    make_variant<T, GemmWgmmaConfig<W, 64, 128, 6>>(),
    make_variant<T, GemmWgmmaConfig<W, 128, 128, 8>>(),
    make_variant<T, GemmWgmmaConfig<W, 128, 256, 6>>(),
    make_variant<T, GemmWgmmaConfig<W, 32, 64, 8, 2>>(),
    make_variant<T, GemmWgmmaConfig<W, 64, 64, 8, 2>>(),
    make_variant<T, GemmWgmmaConfig<W, 128, 64, 5, 2>>(),
    make_variant<T, GemmWgmmaConfig<W, 64, 128, 10, 2>>(),
    make_variant<T, GemmWgmmaConfig<W, 128, 128, 8, 2>>(),
    make_variant<T, GemmWgmmaConfig<W, 32, 128, 10, 4>>(),
    make_variant<T, GemmWgmmaConfig<W, 64, 128, 10, 4>>(),
    make_variant<T, GemmWgmmaConfig<W, 128, 128, 6, 4>>(),
    make_variant<T, GemmWgmmaConfig<W, 256, 128, 5>>(),
};

template <typename T, typename W>
constexpr Variant<T> kGatedVariants[] = {
    make_variant<T, GemmWgmmaConfig<W, 32, 128, 12, 1, true>>(),
    make_variant<T, GemmWgmmaConfig<W, 64, 128, 6, 1, true>>(),
    make_variant<T, GemmWgmmaConfig<W, 64, 128, 12, 1, true>>(),
    make_variant<T, GemmWgmmaConfig<W, 128, 128, 8, 1, true>>(),
    make_variant<T, GemmWgmmaConfig<W, 128, 256, 6, 1, true>>(),
    make_variant<T, GemmWgmmaConfig<W, 256, 128, 5, 1, true>>(),
};

// The nth variant that supports p; null after the last.
template <typename T>
const Variant<T>* find_variant(const Device& device, const LinearParams<T>& p, int n) {
  const bool gated = p.gated != nullptr, quantized = is_quantized(p.weight.kind);
  const int64_t stride = p.stride > 0 ? p.stride : columns_of(p);
  if (p.norm.gamma != nullptr || (gated && !quantized) || device.capability != 90 ||
      device.code != 90 || !aligned16<T>(p.y, stride) || !aligned16<T>(p.residual, stride)) {
    return nullptr;
  }
  const auto find = [&](const auto& variants) -> const Variant<T>* {
    for (const Variant<T>& variant : variants) {
      const bool activates = p.activation != Activation::none && p.activation != Activation::relu;
      const bool in_parts =
          p.weight.inputs >= 2 * variant.depth * variant.parts && (gated || !activates);
      if ((variant.parts == 1 || in_parts) && n-- == 0) return &variant;
    }
    return nullptr;
  };
  if (!quantized) return find(kVariants<T>);
  if (p.weight.kind == WeightKind::int8) {
    return gated ? find(kGatedVariants<T, int8_t>) : find(kQuantizedVariants<T, int8_t>);
  }
  return gated ? find(kGatedVariants<T, Float8>) : find(kQuantizedVariants<T, Float8>);
}

}  // namespace

template <typename T>
int wgmma_variants(const Device& device, const LinearParams<T>& p) {
  int count = 0;
  while (find_variant(device, p, count) != nullptr) ++count;
  return count;
}

template <typename T>
void wgmma_linear(Stream& stream, const LinearParams<T>& p, int n) {
  const Variant<T>& variant = *find_variant(stream.device(), p, n);
  const dim3 grid((p.rows + variant.rows - 1) / variant.rows,
                  (columns_of(p) + variant.columns - 1) / variant.columns, variant.parts);
  launch_clusters(stream, variant.kernel, dim3(1, 1, variant.parts), grid, dim3(kThreads),
                  variant.shared, p);
}

#define INSTANTIATE(T)                                                \
  template int wgmma_variants(const Device&, const LinearParams<T>&); \
  template void wgmma_linear(Stream&, const LinearParams<T>&, int);
INSTANTIATE(half)
INSTANTIATE(bfloat16)

}  // namespace decoding::cuda
