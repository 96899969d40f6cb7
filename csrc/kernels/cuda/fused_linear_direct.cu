// y = activation(norm(x) W^T + bias) + residual for few rows: weights go from
// memory straight to the registers of the tensor cores.
//
// A block computes 16 rows by 8 * kTiles outputs; its warps share out K and add
// up in shared memory at the end. mma.m16n8k16 wants from lane (g, t) the pairs
// k = 2t and 2t + 8 of row or column g. But the order of a sum over k is free,
// as long as both factors agree: so lane (g, t) takes the 16 bytes at k = 32c +
// 8t, whole, of weight row g and of x rows g and g + 8, and calls its first and
// second half the k of two products. No shuffle, no shared memory, full
// sectors, and all of a block's weights are under way before it waits for the
// kernel that writes x.
//
// With a norm, every warp takes mean and squares of its slice of K; slices are
// merged as in Chan, Golub and LeVeque (1979), which costs one barrier. The
// rows are then normed where they lie, in registers. Where there are more
// outputs than blocks (a vocabulary), a block goes on to its next outputs,
// their weights requested before the current ones are multiplied. Where outputs
// are few and K is long, the kParts blocks of a cluster share out K as well.
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/fused_linear_families.h"
#include "kernels/cuda/fused_linear_finish.cuh"
#include "kernels/cuda/fused_linear_mma.cuh"
#include "kernels/cuda/launch.cuh"

namespace decoding::cuda {
namespace {

constexpr int kRows = 16;   // of a block
constexpr int kChunk = 32;  // inputs that a warp multiplies at a time

// Where a thread stands.
struct Lane {
  int warp = threadIdx.x / kWarp;
  int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
};

// The chunks of K that a warp multiplies: [first, first + count).
struct Slice {
  int first, count;

  __device__ Slice(int warp, int warps, int inputs) {
    const int chunks = (inputs + kChunk - 1) / kChunk;
    count = (chunks + warps - 1) / warps;
    first = warp * count;
  }
  __device__ int size(int inputs) const {
    return max(0, min(inputs, (first + count) * kChunk) - first * kChunk);
  }
};

// A lane's share of `kRowGroups` x 8 rows of a matrix, over its warp's slice of
// K.
template <int kRowGroups, int kChunks>
struct Fragments {
  uint4 at[kRowGroups][kChunks];
};

template <int kTiles, int kChunks, typename T>
__device__ __forceinline__ void request(Fragments<kTiles, kChunks>& weights,
                                        const LinearWeight& weight, Slice slice, int output) {
  const Lane lane;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int n = output + 8 * i + lane.g;
    const T* row = static_cast<const T*>(weight.data) + static_cast<int64_t>(n) * weight.inputs;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int k = (slice.first + c) * kChunk + 8 * lane.t;
      weights.at[i][c] =
          request_weight(row + k, c < slice.count && k < weight.inputs && n < weight.outputs);
    }
  }
}

template <int kChunks, typename T>
__device__ __forceinline__ void load_rows(Fragments<2, kChunks>& x, const T* from, int rows,
                                          int inputs, Slice slice) {
  const Lane lane;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = lane.g + 8 * h;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int k = (slice.first + c) * kChunk + 8 * lane.t;
      const bool valid = row < rows && c < slice.count && k < inputs;
      x.at[h][c] = valid ? *reinterpret_cast<const uint4*>(from + row * inputs + k) : uint4{};
    }
  }
}

// Mean of a row and the sum of squares around it, over a part of the row.
struct Moments {
  float mean, squares;
};

// Moments of row g + 8h over the warp's slice.
template <typename T, int kChunks>
__device__ __forceinline__ Moments moments_of(const uint4 (&x)[kChunks], Slice slice, int inputs) {
  const Lane lane;
  const auto add_up = [&](auto term) {
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (c >= slice.count || (slice.first + c) * kChunk + 8 * lane.t >= inputs) continue;
      for (const uint32_t pair : {x[c].x, x[c].y, x[c].z, x[c].w}) {
        const float2 values = unpack<T>(pair);
        sum += term(values.x) + term(values.y);
      }
    }
    return warp_sum<4>(sum);
  };
  const int size = slice.size(inputs);
  const float mean = size > 0 ? add_up([](float value) { return value; }) / size : 0.0f;
  return {mean, add_up([&](float value) { return (value - mean) * (value - mean); })};
}

// Mean and 1 / deviation of a row from the moments of its slices.
template <int kWarps>
__device__ __forceinline__ float2 merge(const Moments (*slices)[kRows], int row, int inputs,
                                        float eps) {
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    sum += Slice(w, kWarps, inputs).size(inputs) * slices[w][row].mean;
  }
  const float mean = sum / inputs;
  float squares = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float distance = slices[w][row].mean - mean;
    squares += slices[w][row].squares + Slice(w, kWarps, inputs).size(inputs) * distance * distance;
  }
  return {mean, 1.0f / sqrtf(squares / inputs + eps)};
}

// One pair of a row, normed. row: its mean and 1 / deviation.
template <typename T>
__device__ __forceinline__ uint32_t norm_pair(uint32_t pair, float2 row, float2 gamma,
                                              float2 beta) {
  const float2 values = unpack<T>(pair);
  return pack<T>({fmaf((values.x - row.x) * row.y, gamma.x, beta.x),
                  fmaf((values.y - row.x) * row.y, gamma.y, beta.y)});
}

// x = norm(x). gamma, beta: in shared memory, or on their way to it.
template <typename T, int kWarps, int kChunks>
__device__ __forceinline__ void norm_rows(Fragments<2, kChunks>& x, Slice slice, int rows,
                                          int inputs, float eps, const float* gamma,
                                          const float* beta, Moments (*moments)[kRows]) {
  const Lane lane;
  const int groups = rows > 8 ? 2 : 1;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (h >= groups) break;
    const Moments own = moments_of<T>(x.at[h], slice, inputs);
    if (lane.t == 0) moments[lane.warp][lane.g + 8 * h] = own;
  }
  wait_for_copies<0>();
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (h >= groups) break;
    const float2 row = merge<kWarps>(moments, lane.g + 8 * h, inputs, eps);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int k = (slice.first + c) * kChunk + 8 * lane.t;
      if (c >= slice.count || k >= inputs) continue;
      const float2* scales = reinterpret_cast<const float2*>(gamma + k);
      const float2* shifts = reinterpret_cast<const float2*>(beta + k);
      uint4& own = x.at[h][c];
      own.x = norm_pair<T>(own.x, row, scales[0], shifts[0]);
      own.y = norm_pair<T>(own.y, row, scales[1], shifts[1]);
      own.z = norm_pair<T>(own.z, row, scales[2], shifts[2]);
      own.w = norm_pair<T>(own.w, row, scales[3], shifts[3]);
    }
  }
}

// The blocks of a row of the grid write norm(x) together, each some of the chunks.
template <typename T, int kChunks>
__device__ __forceinline__ void store_rows(const Fragments<2, kChunks>& x, T* to, int rows,
                                           int inputs, Slice slice) {
  const Lane lane;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = lane.g + 8 * h;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int chunk = slice.first + c, k = chunk * kChunk + 8 * lane.t;
      if (c < slice.count && chunk % gridDim.x == blockIdx.x && row < rows && k < inputs) {
        *reinterpret_cast<uint4*>(to + row * inputs + k) = x.at[h][c];
      }
    }
  }
}

// Shared memory of a block.
template <int kTiles, int kWarps>
struct Layout {
  // A row of partial sums; an odd multiple of 8 words, so that four rows fall on different banks.
  static constexpr int kStride = 8 * (kTiles % 2 == 1 ? kTiles : kTiles + 1);
  static constexpr size_t kPartial = sizeof(float) * kWarps * kRows * kStride;
  static constexpr size_t kMoments = sizeof(Moments) * kWarps * kRows;
  static constexpr size_t kBlockSums = sizeof(float) * kRows * 8 * kTiles;

  static size_t bytes(int inputs, bool norm) {
    return kPartial + (norm ? kMoments + 2 * sizeof(float) * inputs : kBlockSums);
  }
};

// One tile of sums, in independent chains, as a product waits long for the one before it.
template <typename T, int kChunks>
__device__ __forceinline__ void multiply(const Fragments<2, kChunks>& x,
                                         const uint4 (&weights)[kChunks], float (&sums)[4]) {
  constexpr int kChains = kChunks < 4 ? kChunks : 4;
  float chains[kChains][4] = {};
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const uint4 a = x.at[0][c], b = x.at[1][c], w = weights[c];
    multiply_add<T>(chains[c % kChains], a.x, b.x, a.y, b.y, w.x, w.y);
    multiply_add<T>(chains[c % kChains], a.z, b.z, a.w, b.w, w.z, w.w);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sums[i] = chains[0][i];
#pragma unroll
    for (int chain = 1; chain < kChains; ++chain) sums[i] += chains[chain][i];
  }
}

template <int kTiles_, int kWarps_, int kChunks_, int kParts_ = 1, bool kLoops_ = false>
struct Shape {
  static constexpr int kTiles = kTiles_, kWarps = kWarps_, kChunks = kChunks_, kParts = kParts_;
  // Whether a block may go on to further outputs, which needs registers for their weights.
  static constexpr bool kLoops = kLoops_;
  // Whether there may be a norm: rows must be in one block, and more would not fit registers.
  static constexpr bool kNorms = kParts == 1 && kChunks <= 4;
  static constexpr int kThreads = kWarps * kWarp, kOutputs = 8 * kTiles;
  static constexpr int kInputs = kParts * kWarps * kChunks * kChunk;  // at most
};

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads) direct_kernel(const LinearParams<T> p) {
  constexpr int kTiles = S::kTiles, kWarps = S::kWarps, kChunks = S::kChunks;
  constexpr int kThreads = S::kThreads, kOutputs = S::kOutputs;
  constexpr bool kLoops = S::kLoops;
  using Shared = Layout<kTiles, kWarps>;
  constexpr int kRowStep = kThreads / kOutputs;  // rows that the threads finish at a time
  constexpr int kSums = (kRows + kRowStep - 1) / kRowStep;
  extern __shared__ __align__(16) char shared[];
  auto partial = reinterpret_cast<float (*)[kRows][Shared::kStride]>(shared);
  auto moments = reinterpret_cast<Moments(*)[kRows]>(shared + Shared::kPartial);
  auto block_sums = reinterpret_cast<float (*)[kOutputs]>(shared + Shared::kPartial);
  float* gamma = reinterpret_cast<float*>(shared + Shared::kPartial + Shared::kMoments);

  const Lane lane;
  const int inputs = p.weight.inputs, outputs = p.weight.outputs;
  const bool norm = S::kNorms && p.norm.gamma != nullptr;
  const Slice slice(blockIdx.z * kWarps + lane.warp, S::kParts * kWarps, inputs);
  const int own_row = threadIdx.x / kOutputs, own_output = threadIdx.x % kOutputs;
  const auto bias_of = [&](int output) {
    return p.bias != nullptr && output < outputs ? p.bias[output] : 0.0f;
  };

  int output = blockIdx.x * kOutputs;
  Fragments<kTiles, kChunks> weights;
  request<kTiles, kChunks, T>(weights, p.weight, slice, output);
  float bias = bias_of(output + own_output);
  if (norm) request_scales<kThreads>(gamma, p.norm, inputs, inputs);
  wait_for_previous();
  let_next_start();

  const int first_row = blockIdx.y * kRows, rows = min(kRows, p.rows - first_row);
  Fragments<2, kChunks> x;
  load_rows(x, p.x + static_cast<int64_t>(first_row) * inputs, rows, inputs, slice);
  if (norm) {
    norm_rows<T, kWarps>(x, slice, rows, inputs, p.norm.eps, gamma, gamma + inputs, moments);
    store_rows(x, p.normed + static_cast<int64_t>(first_row) * inputs, rows, inputs, slice);
  }

  while (true) {
    const int next = output + gridDim.x * kOutputs, column = output + own_output;
    Fragments<kTiles, kChunks> coming;
    float next_bias;
    if (kLoops) {
      request<kTiles, kChunks, T>(coming, p.weight, slice, next);
      next_bias = bias_of(next + own_output);
    }
    // Each block of a cluster finishes some of the rows.
    const auto finishes = [&](int row) {
      return row < rows && column < outputs && row % S::kParts == blockIdx.z;
    };
    float residual[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int row = own_row + i * kRowStep;
      const int64_t at = static_cast<int64_t>(first_row + row) * outputs + column;
      residual[i] = p.residual != nullptr && finishes(row) ? to_float(p.residual[at]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      float sums[4];
      multiply<T>(x, weights.at[i], sums);
      float2* to = reinterpret_cast<float2*>(&partial[lane.warp][lane.g][8 * i + 2 * lane.t]);
      to[0] = {sums[0], sums[1]};
      to[8 * Shared::kStride / 2] = {sums[2], sums[3]};
    }
    __syncthreads();
    float sums[kSums] = {};
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int row = own_row + i * kRowStep;
      if (row >= rows) break;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sums[i] += partial[w][row][own_output];
    }
    if constexpr (S::kParts > 1) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const int row = own_row + i * kRowStep;
        if (row < rows) block_sums[row][own_output] = sums[i];
      }
      meet_cluster();
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const int row = own_row + i * kRowStep;
        if (!finishes(row)) continue;
        sums[i] = 0.0f;
#pragma unroll
        for (int part = 0; part < S::kParts; ++part) {
          sums[i] += load_from_block(part, &block_sums[row][own_output]);
        }
      }
      meet_cluster();  // a block's sums stay until all have read them
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int row = own_row + i * kRowStep;
      if (!finishes(row)) continue;
      p.y[static_cast<int64_t>(first_row + row) * outputs + column] =
          from_float<T>(activate(sums[i] + bias, p.activation) + residual[i]);
    }
    if (!kLoops || next >= outputs) break;
    __syncthreads();  // the partial sums are read
    weights = coming;
    bias = next_bias;
    output = next;
  }
}

template <typename T>
struct Variant {
  int outputs, threads, inputs, parts;
  bool norms, loops;
  void (*kernel)(LinearParams<T>);
  size_t (*shared)(int inputs, bool norm);
};

template <typename T, typename S>
constexpr Variant<T> make_variant() {
  return {.outputs = S::kOutputs,
          .threads = S::kThreads,
          .inputs = S::kInputs,
          .parts = S::kParts,
          .norms = S::kNorms,
          .loops = S::kLoops,
          .kernel = direct_kernel<T, S>,
          .shared = Layout<S::kTiles, S::kWarps>::bytes};
}

template <typename T>
constexpr Variant<T> kVariants[] = {
    make_variant<T, Shape<1, 8, 2>>(),    make_variant<T, Shape<2, 8, 2>>(),
    make_variant<T, Shape<4, 8, 2>>(),    make_variant<T, Shape<2, 8, 2, 1, true>>(),
    make_variant<T, Shape<1, 8, 4>>(),    make_variant<T, Shape<2, 8, 4>>(),
    make_variant<T, Shape<4, 16, 2>>(),   make_variant<T, Shape<4, 16, 2, 1, true>>(),
    make_variant<T, Shape<4, 4, 2, 4>>(), make_variant<T, Shape<1, 16, 4>>(),
    make_variant<T, Shape<2, 16, 4>>(),   make_variant<T, Shape<2, 8, 2, 4>>(),
    make_variant<T, Shape<1, 16, 8>>(),   make_variant<T, Shape<2, 8, 4, 4>>(),
};

// The nth variant that suits p; null behind the last. Those that hold more than
// twice the inputs would leave warps without work, except the smallest.
template <typename T>
const Variant<T>* find_variant(const Device& device, const LinearParams<T>& p, int n) {
  constexpr int kSmallest = kVariants<T>[0].inputs;
  for (const Variant<T>& variant : kVariants<T>) {
    const bool suits = p.weight.inputs <= variant.inputs &&
                       (variant.inputs == kSmallest || variant.inputs < 2 * p.weight.inputs) &&
                       (variant.norms || p.norm.gamma == nullptr) &&
                       (variant.parts == 1 || device.major >= 9);
    if (suits && n-- == 0) return &variant;
  }
  return nullptr;
}

}  // namespace

template <typename T>
int direct_variants(const Device& device, const LinearParams<T>& p) {
  int count = 0;
  while (find_variant(device, p, count) != nullptr) ++count;
  return count;
}

template <typename T>
void direct_linear(Stream& stream, const LinearParams<T>& p, int n) {
  const Variant<T>& variant = *find_variant(stream.device(), p, n);
  const int tiles = (p.weight.outputs + variant.outputs - 1) / variant.outputs;
  int rounds = 1;
  if (variant.loops) {                   // as many blocks as run at a time, and all with nearly
                                         // as many tiles
    constexpr int kThreadsAtOnce = 768;  // of a multiprocessor
    const int resident = stream.device().multiprocessors * (kThreadsAtOnce / variant.threads);
    rounds = (tiles + resident - 1) / resident;
  }
  const dim3 grid((tiles + rounds - 1) / rounds, (p.rows + kRows - 1) / kRows, variant.parts);
  launch_clusters(stream, variant.kernel, dim3(1, 1, variant.parts), grid, dim3(variant.threads),
                  variant.shared(p.weight.inputs, p.norm.gamma != nullptr), p);
}

#define INSTANTIATE(T)                                                 \
  template int direct_variants(const Device&, const LinearParams<T>&); \
  template void direct_linear(Stream&, const LinearParams<T>&, int);
INSTANTIATE(half)
INSTANTIATE(bfloat16)

}  // namespace decoding::cuda
