// y = activation(norm(x) W^T + bias) + residual for more rows: tiles of x and W
// pass through shared memory to the tensor cores.
//
// A block computes kRows x kColumns of y. K goes in steps of 64, a line of 128
// bytes for each row of a tile; kStages steps are under way by cp.async, and
// those of W begin before the wait for the kernel that writes x. In a line the
// 16-byte chunks are permuted by the row (chunk ^ row % 8), so that ldmatrix
// finds eight rows in eight different bank groups. Where few tiles leave a
// block with little to do at a time, kSplits groups of warps share the products
// of a step. The sums go through shared memory once more, so that bias,
// residual and y are read and written in 16 bytes.
//
// With a norm, the block's rows of x lie in shared memory whole, and are normed
// there first. Where tiles are few and K is long, the kParts blocks of a
// cluster share out K, and each then adds up some rows of all their sums.
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/fused_linear_families.h"
#include "kernels/cuda/fused_linear_finish.cuh"
#include "kernels/cuda/fused_linear_mma.cuh"
#include "kernels/cuda/launch.cuh"

namespace decoding::cuda {
namespace {

constexpr int kDepth = 64;              // inputs of a step
constexpr int kChunk = 8;               // elements in 16 bytes
constexpr int kLine = kDepth / kChunk;  // chunks of a row of a tile
constexpr int kChunkBytes = 16;

// What a variant is: kRows x kColumns outputs of kParts blocks, in each by
// kDown x kAcross warps in kSplits groups.
template <int kRows_, int kColumns_, int kDown_, int kAcross_, int kSplits_, int kStages_,
          int kParts_ = 1>
struct Shape {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kDown = kDown_, kAcross = kAcross_,
                       kSplits = kSplits_, kStages = kStages_, kParts = kParts_;
  static constexpr int kWarps = kDown * kAcross * kSplits, kThreads = kWarps * kWarp;
  static constexpr int kTileRows = kRows / kDown / 16;          // mma tiles of a warp
  static constexpr int kTileColumns = kColumns / kAcross / 16;  // pairs of mma tiles of a warp
  static constexpr int kSumStride = kColumns + 8;  // four rows of sums fall on different banks
  static constexpr int kXBytes = kRows * kDepth * 2,
                       kWBytes = kColumns * kDepth * 2;  // of a step
  static constexpr size_t kSumBytes = sizeof(float) * kSplits * kRows * kSumStride;
  static constexpr size_t kBiasBytes = sizeof(float) * kColumns;
  static_assert(kThreads >= kColumns && kTileRows > 0 && kTileColumns > 0 &&
                kDepth / 16 % kSplits == 0);

  // Bias, gamma and beta, W's stages, then x: stages, or all of it. The sums
  // take the place of both.
  static size_t shared_bytes(int inputs, bool norm) {
    const size_t steps = (inputs + kDepth - 1) / kDepth;
    const size_t table = norm ? 2 * sizeof(float) * steps * kDepth : 0;
    const size_t tiles = kStages * kWBytes + (norm ? steps : kStages) * kXBytes;
    return kBiasBytes + table + (tiles > kSumBytes ? tiles : kSumBytes);
  }
};

// Byte of a chunk in a tile.
__device__ __forceinline__ int place(int row, int chunk) {
  return (row * kLine + (chunk ^ (row % kLine))) * kChunkBytes;
}

// Asks for one step of kTileRows rows of a matrix [rows, inputs]; zeros outside
// of it.
template <int kTileRows, int kThreads, typename T>
__device__ __forceinline__ void request(uint32_t to, const T* from, int first, int rows, int inputs,
                                        int step) {
  static_assert(kTileRows * kLine % kThreads == 0);
#pragma unroll
  for (int i = 0; i < kTileRows * kLine / kThreads; ++i) {
    const int at = i * kThreads + threadIdx.x, row = at / kLine, chunk = at % kLine;
    const int k = step * kDepth + chunk * kChunk;
    const bool valid = first + row < rows && k < inputs;
    const int64_t offset = valid ? static_cast<int64_t>(first + row) * inputs + k : 0;
    copy_async(to + place(row, chunk), from + offset, valid);
  }
}

// Norms the block's rows of x where they lie: eight lanes a row, one for each
// chunk of a line. Each of the blocks that hold these rows writes some steps of
// them to p.normed.
template <typename T, typename S>
__device__ void norm_rows(const LinearParams<T>& p, char* x, const float* gamma, const float* beta,
                          int first_row) {
  const int inputs = p.weight.inputs, steps = (inputs + kDepth - 1) / kDepth;
  const int chunk = threadIdx.x % kLine;
  // Only the last step can end before the chunk does.
  const int own_steps = steps - ((steps - 1) * kDepth + chunk * kChunk >= inputs);
  for (int row = threadIdx.x / kLine; row < S::kRows; row += S::kThreads / kLine) {
    char* const own = x + place(row, chunk);
    const auto sum_of = [&](auto term) {
      float sum = 0.0f;
#pragma unroll 4
      for (int step = 0; step < own_steps; ++step) {
        const uint4 bits = *reinterpret_cast<const uint4*>(own + step * S::kXBytes);
        for (const uint32_t pair : {bits.x, bits.y, bits.z, bits.w}) {
          const float2 values = unpack<T>(pair);
          sum += term(values.x) + term(values.y);
        }
      }
      return warp_sum<kLine>(sum);
    };
    const float mean = sum_of([](float value) { return value; }) / inputs;
    const float squares = sum_of([&](float value) { return (value - mean) * (value - mean); });
    const float scale = 1.0f / sqrtf(squares / inputs + p.norm.eps);
#pragma unroll 4
    for (int step = 0; step < own_steps; ++step) {
      const int k = step * kDepth + chunk * kChunk;
      uint4 bits = *reinterpret_cast<const uint4*>(own + step * S::kXBytes);
      uint32_t* const pairs[] = {&bits.x, &bits.y, &bits.z, &bits.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 value = unpack<T>(*pairs[i]);
        const float2 factor = *reinterpret_cast<const float2*>(gamma + k + 2 * i);
        const float2 shift = *reinterpret_cast<const float2*>(beta + k + 2 * i);
        *pairs[i] = pack<T>({fmaf((value.x - mean) * scale, factor.x, shift.x),
                             fmaf((value.y - mean) * scale, factor.y, shift.y)});
      }
      *reinterpret_cast<uint4*>(own + step * S::kXBytes) = bits;
      if (step % gridDim.y == blockIdx.y && first_row + row < p.rows) {
        *reinterpret_cast<uint4*>(p.normed + static_cast<int64_t>(first_row + row) * inputs + k) =
            bits;
      }
    }
  }
}

// sums += one step of x W^T: the products of this warp's tiles and its group's
// part of the inputs.
template <typename T, typename S>
__device__ __forceinline__ void multiply(float (&sums)[S::kTileRows][2 * S::kTileColumns][4],
                                         uint32_t x, uint32_t w, int down, int across, int split) {
  const int lane = threadIdx.x % kWarp;
  constexpr int kProducts = kDepth / 16 / S::kSplits;
#pragma unroll
  for (int product = 0; product < kProducts; ++product) {
    const int chunk = 2 * (split * kProducts + product);
    uint32_t a[S::kTileRows][4], b[S::kTileColumns][4];
#pragma unroll
    for (int i = 0; i < S::kTileRows; ++i) {
      const int row = (down * S::kTileRows + i) * 16 + lane % 16;
      load_matrices(a[i], x + place(row, chunk + lane / 16));
    }
#pragma unroll
    for (int j = 0; j < S::kTileColumns; ++j) {
      const int column = (across * S::kTileColumns + j) * 16 + lane % 8 + lane / 16 * 8;
      load_matrices(b[j], w + place(column, chunk + lane / 8 % 2));
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

// How the threads of a block divide its outputs among them: in chunks of a row.
template <typename T, typename S>
class Finish {
 public:
  __device__ Finish(const LinearParams<T>& p, bool wide, int first_row, int first_column)
      : p_(p), wide_(wide), first_row_(first_row), first_column_(first_column) {}

  // Asks for the residual, so that it comes while the sums pass through shared
  // memory.
  __device__ __forceinline__ void request_residual() {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const bool wanted = wide_ && p_.residual != nullptr && has(i);
      residual_[i] = wanted ? Vector<T>::load(p_.residual + at(i)) : Vector<T>{};
    }
  }

  // sums: of every block, [kSplits][kRows][kSumStride]
  __device__ __forceinline__ void store(const float* sums, const float* bias) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      if (!has(i)) break;
      float values[kChunk];
#pragma unroll
      for (int c = 0; c < kChunk; ++c) values[c] = bias[column_ + c];
#pragma unroll
      for (int part = 0; part < S::kParts * S::kSplits; ++part) {
        const int row = part % S::kSplits * S::kRows + tile_row(i);
        const float* from = sums + row * S::kSumStride + column_;
        add(values, load(part / S::kSplits, from));
        add(values + 4, load(part / S::kSplits, from + 4));
      }
      Vector<T> y;
#pragma unroll
      for (int c = 0; c < kChunk; ++c) {
        float residual = residual_[i][c];
        if (!wide_ && p_.residual != nullptr && c < count()) {
          residual = to_float(p_.residual[at(i) + c]);
        }
        y.values[c] = from_float<T>(activate(values[c], p_.activation) + residual);
      }
      if (wide_) {
        y.store(p_.y + at(i));
        continue;
      }
#pragma unroll
      for (int c = 0; c < kChunk; ++c) {
        if (c < count()) p_.y[at(i) + c] = y.values[c];
      }
    }
  }

 private:
  static constexpr int kAcross = S::kColumns / kChunk;  // threads on a row
  static constexpr int kRowStep = S::kThreads / kAcross;
  static constexpr int kPartRows = S::kRows / S::kParts;
  static constexpr int kRounds = (kPartRows + kRowStep - 1) / kRowStep;
  static_assert(S::kThreads % kAcross == 0 && S::kRows % S::kParts == 0);

  __device__ static float4 load(int block, const float* from) {
    const float4* four = reinterpret_cast<const float4*>(from);
    if constexpr (S::kParts == 1) return *four;
    return load_from_block(block, four);
  }
  __device__ static void add(float* to, float4 values) {
    to[0] += values.x, to[1] += values.y, to[2] += values.z, to[3] += values.w;
  }
  __device__ int tile_row(int i) const { return blockIdx.z * kPartRows + row_ + i * kRowStep; }
  __device__ int row(int i) const { return first_row_ + tile_row(i); }
  __device__ bool has(int i) const {
    return row_ + i * kRowStep < kPartRows && row(i) < p_.rows && count() > 0;
  }
  __device__ int count() const { return p_.weight.outputs - first_column_ - column_; }
  __device__ int64_t at(int i) const {
    return static_cast<int64_t>(row(i)) * p_.weight.outputs + first_column_ + column_;
  }

  const LinearParams<T>& p_;
  const bool wide_;
  const int first_row_, first_column_;
  const int row_ = threadIdx.x / kAcross, column_ = threadIdx.x % kAcross * kChunk;
  Vector<T> residual_[kRounds];
};

// wide: y and the residual can be accessed in 16 bytes.
template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads) tiled_kernel(const LinearParams<T> p, bool wide) {
  extern __shared__ __align__(128) char shared[];
  const int inputs = p.weight.inputs, outputs = p.weight.outputs;
  const int all_steps = (inputs + kDepth - 1) / kDepth;
  const int part_steps = (all_steps + S::kParts - 1) / S::kParts;
  const int first_step = blockIdx.z * part_steps;
  const int steps = min(part_steps, all_steps - first_step);  // of this block; may be negative
  const int first_row = blockIdx.x * S::kRows, first_column = blockIdx.y * S::kColumns;
  const bool norm = S::kParts == 1 && p.norm.gamma != nullptr;
  float* const bias = reinterpret_cast<float*>(shared);
  float* const gamma = bias + S::kColumns;
  float* const beta = gamma + steps * kDepth;
  char* const tiles = reinterpret_cast<char*>(norm ? beta + steps * kDepth : gamma);
  char* const x = tiles + S::kStages * S::kWBytes;
  const uint32_t w_at = static_cast<uint32_t>(__cvta_generic_to_shared(tiles));
  const uint32_t x_at = static_cast<uint32_t>(__cvta_generic_to_shared(x));
  const auto request_w = [&](int step) {
    if (step >= steps) return;
    request<S::kColumns, S::kThreads>(w_at + step % S::kStages * S::kWBytes,
                                      static_cast<const T*>(p.weight.data), first_column, outputs,
                                      inputs, first_step + step);
  };
  const auto x_of = [&](int step) { return x_at + (norm ? step : step % S::kStages) * S::kXBytes; };
  const auto request_x = [&](int step) {
    if (step >= steps) return;
    request<S::kRows, S::kThreads>(x_of(step), p.x, first_row, p.rows, inputs, first_step + step);
  };

  for (int step = 0; step < S::kStages - 1; ++step) request_w(step);
  if (norm) request_scales<S::kThreads>(gamma, p.norm, steps * kDepth, inputs);
  const int own_column = first_column + threadIdx.x;
  const bool has_bias = threadIdx.x < S::kColumns && own_column < outputs && p.bias != nullptr;
  const float own_bias = has_bias ? p.bias[own_column] : 0.0f;
  wait_for_previous();
  let_next_start();
  if (norm) {
    for (int step = 0; step < steps; ++step) request_x(step);
    close_copies();
    wait_for_copies<0>();
    __syncthreads();
    norm_rows<T, S>(p, x, gamma, beta, first_row);
  } else {
    for (int step = 0; step < S::kStages - 1; ++step) {
      request_x(step);
      close_copies();
    }
  }

  if (threadIdx.x < S::kColumns) bias[threadIdx.x] = own_bias;

  const int warp = threadIdx.x / kWarp, split = warp / (S::kDown * S::kAcross);
  const int down = warp / S::kAcross % S::kDown, across = warp % S::kAcross;
  float sums[S::kTileRows][2 * S::kTileColumns][4] = {};
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<S::kStages - 2>();
    __syncthreads();  // this step has arrived, and nobody reads the one before
                      // any more
    request_w(step + S::kStages - 1);
    if (!norm) request_x(step + S::kStages - 1);
    close_copies();
    multiply<T, S>(sums, x_of(step), w_at + step % S::kStages * S::kWBytes, down, across, split);
  }
  Finish<T, S> finish(p, wide, first_row, first_column);
  finish.request_residual();
  __syncthreads();  // the tiles are read, their place takes the sums

  float* const all = reinterpret_cast<float*>(tiles);
  const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < S::kTileRows; ++i) {
    const int row = split * S::kRows + (down * S::kTileRows + i) * 16 + g;
#pragma unroll
    for (int j = 0; j < 2 * S::kTileColumns; ++j) {
      const int column = (across * 2 * S::kTileColumns + j) * 8 + 2 * t;
      float2* to = reinterpret_cast<float2*>(all + row * S::kSumStride + column);
      to[0] = {sums[i][j][0], sums[i][j][1]};
      to[8 * S::kSumStride / 2] = {sums[i][j][2], sums[i][j][3]};
    }
  }
  if constexpr (S::kParts == 1) {
    __syncthreads();
    finish.store(all, bias);
  } else {
    meet_cluster();
    finish.store(all, bias);
    meet_cluster();  // a block's sums stay until all have read them
  }
}

template <typename T>
struct Variant {
  int rows, columns, parts, threads;
  void (*kernel)(LinearParams<T>, bool wide);
  size_t (*shared)(int inputs, bool norm);
};

template <typename T, typename S>
constexpr Variant<T> make_variant() {
  return {S::kRows, S::kColumns, S::kParts, S::kThreads, tiled_kernel<T, S>, S::shared_bytes};
}

template <typename T>
constexpr Variant<T> kVariants[] = {
    make_variant<T, Shape<32, 32, 2, 1, 2, 8>>(),
    make_variant<T, Shape<64, 32, 2, 1, 2, 6>>(),
    make_variant<T, Shape<64, 64, 2, 2, 1, 5>>(),
    make_variant<T, Shape<64, 64, 2, 2, 2, 5>>(),
    make_variant<T, Shape<128, 64, 4, 2, 1, 4>>(),
    make_variant<T, Shape<128, 128, 2, 4, 1, 4>>(),
    make_variant<T, Shape<32, 32, 2, 1, 2, 8, 4>>(),
    make_variant<T, Shape<64, 32, 2, 1, 2, 6, 4>>(),
    make_variant<T, Shape<64, 64, 2, 2, 2, 5, 4>>(),
    make_variant<T, Shape<128, 64, 4, 2, 1, 4, 4>>(),
};

// Norming many rows in every block of a row of tiles costs more than a pass of
// its own.
constexpr int kMostNormedRows = 64;

// Parts make up a cluster, know only their part of a row, and should have a few
// steps each.
template <typename T>
bool suits_parts(const Device& device, const LinearParams<T>& p, int parts) {
  return parts == 1 ||
         (device.major >= 9 && p.norm.gamma == nullptr && p.weight.inputs >= 2 * kDepth * parts);
}

// The nth variant that suits p; null behind the last.
template <typename T>
const Variant<T>* find_variant(const Device& device, const LinearParams<T>& p, int n) {
  const bool norm = p.norm.gamma != nullptr;
  for (const Variant<T>& variant : kVariants<T>) {
    const bool suits =
        (!norm || variant.rows <= kMostNormedRows) && suits_parts(device, p, variant.parts) &&
        variant.shared(p.weight.inputs, norm) <= static_cast<size_t>(device.shared_memory);
    if (suits && n-- == 0) return &variant;
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
  launch_clusters(
      stream, variant.kernel, dim3(1, 1, variant.parts), grid, dim3(variant.threads),
      variant.shared(p.weight.inputs, p.norm.gamma != nullptr), p,
      aligned16<T>(p.y, p.weight.outputs) && aligned16<T>(p.residual, p.weight.outputs));
}

#define INSTANTIATE(T)                                                \
  template int tiled_variants(const Device&, const LinearParams<T>&); \
  template void tiled_linear(Stream&, const LinearParams<T>&, int);
INSTANTIATE(half)
INSTANTIATE(bfloat16)

}  // namespace decoding::cuda
