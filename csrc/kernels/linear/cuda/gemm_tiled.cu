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
#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/linear/cuda/gemm_families.h"
#include "kernels/linear/cuda/tile.cuh"

namespace decoding::cuda {
namespace {

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

template <typename T, typename S>
struct Shared {
  float bias[S::kColumns];
  union {
    struct {
      char w[S::kStages][S::kColumns * kLineBytes];
      char x[S::kStages][S::kRows * kLineBytes];
    };
    float sums[S::kSplits][S::kRows][S::kSumStride];
  };
  T residual[S::kRows][S::kColumns];  // last: where there is none, it takes no place

  static size_t bytes(bool residual) {
    return residual ? sizeof(Shared) : offsetof(Shared, residual);
  }
};

// sums += one step of x W^T: the products of this warp's tiles and its group's part of the inputs.
template <typename T, typename S>
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
      load_matrices(b[j], w + j * 16 * kLineBytes + ((chunk + lane / 8 % 2) ^ lane % 8) * 16);
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

// The block's sums, from the registers of its warps.
template <typename T, typename S>
__device__ __forceinline__ void store_sums(
    const float (&sums)[S::kTileRows][2 * S::kTileColumns][4], int down, int across, int split,
    Shared<T, S>& shared) {
  const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < S::kTileRows; ++i) {
    const int row = (down * S::kTileRows + i) * 16 + g;
#pragma unroll
    for (int j = 0; j < 2 * S::kTileColumns; ++j) {
      const int column = (across * 2 * S::kTileColumns + j) * 8 + 2 * t;
      float (*to)[S::kSumStride] = shared.sums[split];
      *reinterpret_cast<float2*>(&to[row][column]) = {sums[i][j][0], sums[i][j][1]};
      *reinterpret_cast<float2*>(&to[row + 8][column]) = {sums[i][j][2], sums[i][j][3]};
    }
  }
}

// The blocks of a cluster add up their own sums, and then see each other's.
template <typename T, typename S>
__device__ __forceinline__ void combine_splits(Shared<T, S>& shared) {
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
template <typename Floats, typename T, typename S, typename Add>
__device__ __forceinline__ void for_sums(const Shared<T, S>& shared, int row, int column,
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
template <typename T, typename S>
__device__ __forceinline__ void finish_vectors(const LinearParams<T>& p, int first_row,
                                               int first_column, const Shared<T, S>& shared) {
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
    if (p.activation != Activation::none) {
#pragma unroll
      for (int c = 0; c < kChunk; ++c) values[c] = activate(values[c], p.activation);
    }
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
template <typename T, typename S>
__device__ __forceinline__ void finish_elements(const LinearParams<T>& p, int first_row,
                                                int first_column, const Shared<T, S>& shared) {
  for (int i = threadIdx.x; i < S::kPartRows * S::kColumns; i += S::kThreads) {
    const int row = blockIdx.z * S::kPartRows + i / S::kColumns, column = i % S::kColumns;
    if (first_row + row >= p.rows || first_column + column >= p.weight.outputs) continue;
    float value = shared.bias[column];
    for_sums<float>(shared, row, column, [&](float sum) { value += sum; });
    value = activate(value, p.activation);
    const int64_t at = place(p, first_row + row, first_column + column);
    if (p.residual != nullptr) value += to_float(p.residual[at]);
    p.y[at] = from_float<T>(value);
  }
}

// The residual of the part of the tile that this block finishes.
template <typename T, typename S>
__device__ __forceinline__ void request_residual(const LinearParams<T>& p, int first_row,
                                                 int first_column, Shared<T, S>& shared) {
  for (int i = threadIdx.x; i < S::kPartRows * S::kWidth; i += S::kThreads) {
    const int row = blockIdx.z * S::kPartRows + i / S::kWidth, column = i % S::kWidth * kChunk;
    const bool valid = first_row + row < p.rows && first_column + column < p.weight.outputs;
    const int64_t at = place(p, first_row + row, first_column + column);
    copy_async(shared_address(&shared.residual[row][column]), p.residual + (valid ? at : 0), valid);
  }
}

// Steps [step, end) of the block's part of W, as far as the L2 cache.
template <typename T, typename S>
__device__ __forceinline__ void prefetch_steps(const LinearWeight& weight, int first_column,
                                               int step, int end) {
  for (int i = threadIdx.x; i < S::kColumns * (end - step); i += S::kThreads) {
    const int column = first_column + i % S::kColumns, k = (step + i / S::kColumns) * kSlice;
    if (column >= weight.outputs) continue;
    prefetch(static_cast<const T*>(weight.data) + static_cast<int64_t>(column) * weight.inputs + k);
  }
}

// vectorized: y and the residual can be accessed in 16 bytes.
template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads)
    tiled_kernel(const LinearParams<T> p, bool vectorized) {
  extern __shared__ __align__(128) char bytes[];
  Shared<T, S>& shared = *reinterpret_cast<Shared<T, S>*>(bytes);
  const int inputs = p.weight.inputs, outputs = p.weight.outputs;
  const int all_steps = (inputs + kSlice - 1) / kSlice;
  const int part_steps = (all_steps + S::kParts - 1) / S::kParts,
            first_step = blockIdx.z * part_steps;
  const int steps = min(part_steps, all_steps - first_step);  // of this block; may be negative
  const int first_row = blockIdx.x * S::kRows, first_column = blockIdx.y * S::kColumns;

  Source<T, S::kColumns, S::kThreads> w(static_cast<const T*>(p.weight.data), first_column, outputs,
                                        inputs, first_step * kSlice);
#pragma unroll
  for (int stage = 0; stage < S::kStages - 1; ++stage) {
    if (stage < steps) w.request_next(shared.w[stage]);
  }
  prefetch_steps<T, S>(p.weight, first_column, first_step + S::kStages - 1, first_step + steps);
  const int own_column = first_column + threadIdx.x;
  const bool has_bias = threadIdx.x < S::kColumns && own_column < outputs && p.bias != nullptr;
  const float own_bias = has_bias ? p.bias[own_column] : 0.0f;
  Source<T, S::kRows, S::kThreads> x(p.x, first_row, p.rows, inputs, first_step * kSlice);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int split = warp / (S::kDown * S::kAcross);
  const int down = warp / S::kAcross % S::kDown, across = warp % S::kAcross;
  const int x_row = down * S::kTileRows * 16 + lane % 16;
  const int w_row = across * S::kTileColumns * 16 + lane % 8 + lane / 16 * 8;
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
  if (threadIdx.x < S::kColumns) shared.bias[threadIdx.x] = own_bias;

  float sums[S::kTileRows][2 * S::kTileColumns][4] = {};
  int stage = 0;
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<S::kStages - 2>();
    __syncthreads();  // this step has arrived, and all have read the one before
    multiply<T, S>(sums, shared_address(shared.x[stage]) + x_row * kLineBytes,
                   shared_address(shared.w[stage]) + w_row * kLineBytes, split);
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
  store_sums(sums, down, across, split, shared);
  __syncthreads();
  if constexpr (S::kParts > 1) combine_splits(shared);
  if (vectorized) {
    finish_vectors(p, first_row, first_column, shared);
  } else {
    finish_elements(p, first_row, first_column, shared);
  }
  if constexpr (S::kParts > 1) sync_cluster();  // a block's sums stay until all have read them
}

template <typename T>
struct Variant {
  int rows, columns, parts, threads;
  size_t (*shared)(bool residual);
  void (*kernel)(LinearParams<T>, bool vectorized);
};

template <typename T, typename S>
constexpr Variant<T> make_variant() {
  return {S::kRows, S::kColumns, S::kParts, S::kThreads, Shared<T, S>::bytes, tiled_kernel<T, S>};
}

template <typename T>
constexpr Variant<T> kVariants[] = {
    make_variant<T, GemmTiledConfig<32, 32, 2, 1, 4, 6>>(),
    make_variant<T, GemmTiledConfig<64, 32, 2, 1, 4, 6>>(),
    make_variant<T, GemmTiledConfig<64, 64, 2, 2, 2, 5>>(),
    make_variant<T, GemmTiledConfig<128, 64, 2, 2, 2, 4>>(),
    make_variant<T, GemmTiledConfig<128, 128, 2, 4, 1, 3>>(),
    make_variant<T, GemmTiledConfig<128, 64, 2, 1, 2, 4>>(),
    make_variant<T, GemmTiledConfig<128, 128, 2, 2, 1, 3>>(),
    make_variant<T, GemmTiledConfig<32, 32, 2, 1, 4, 6, 4>>(),
    make_variant<T, GemmTiledConfig<64, 32, 2, 1, 4, 6, 4>>(),
    make_variant<T, GemmTiledConfig<64, 64, 2, 2, 2, 5, 4>>(),
    make_variant<T, GemmTiledConfig<128, 64, 2, 2, 2, 4, 4>>(),
};

// The nth variant that supports p; null after the last. A part of K should have a few steps.
template <typename T>
const Variant<T>* find_variant(const Device& device, const LinearParams<T>& p, int n) {
  if (p.norm.gamma != nullptr || p.gated != nullptr) return nullptr;
  for (const Variant<T>& variant : kVariants<T>) {
    const bool supported =
        variant.shared(true) <= static_cast<size_t>(device.shared_memory) &&
        (variant.parts == 1 || (device.hopper() && p.weight.inputs >= 2 * kSlice * variant.parts));
    if (supported && n-- == 0) return &variant;
  }
  return nullptr;
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

#define INSTANTIATE(T)                                                \
  template int tiled_variants(const Device&, const LinearParams<T>&); \
  template void tiled_linear(Stream&, const LinearParams<T>&, int);
INSTANTIATE(half)
INSTANTIATE(bfloat16)

}  // namespace decoding::cuda
