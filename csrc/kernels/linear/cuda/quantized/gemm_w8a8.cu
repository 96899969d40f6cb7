// A block computes one tile of kRows x kColumns outputs after another. A thread copies steps of
// kDepth inputs to a pipeline in shared memory, also those of the next tile while the sums of this
// one are scaled; two groups of four warps multiply 64 rows each, and never wait for each other
// (CUTLASS's persistent, warp-specialized kernels). Results are stored step by step while the next
// tile is multiplied.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/linear/cuda/quantized/gemm_w8a8.h"
#include "kernels/linear/linear.h"

namespace decoding::cuda {
namespace {

constexpr int kGroup = 4 * kWarp;  // threads that multiply together
constexpr int kConsumers = 2 * kGroup, kThreads = kConsumers + kGroup;
constexpr int kOfProducer = 40, kOfConsumer = 232;  // registers
constexpr int kGroupRows = 64;
constexpr int kRows = 128, kColumns = 256, kDepth = 128;  // bytes of a line
constexpr int kStages = 4;

// Of an output: what its sums are multiplied by, and what is added.
struct alignas(8) Column {
  float scale, bias;
};
using Columns = Column[kColumns];

struct Shared {
  alignas(1024) int8_t x[kStages][kRows][kDepth];
  alignas(1024) int8_t w[kStages][kColumns][kDepth];
  alignas(16) Columns columns[2][2];  // of each group: of a tile and of the next one
  TmaPipeline<kStages> pipeline;
};

using Sums = int[kColumns / 8][4];

// The tiles of a product, in bands of kBand tiles of columns: tiles that are computed together have
// the same rows, and W stays in the L2 cache.
struct Tiles {
  static constexpr int kBand = 16;
  int down, across, count;

  DECODING_EVERYWHERE Tiles(int rows, int outputs)
      : down((rows + kRows - 1) / kRows),
        across((outputs + kColumns - 1) / kColumns),
        count(down * across) {}

  // The first row and column of a tile.
  __device__ int2 origin(int tile) const {
    const int band = tile / (kBand * down), place = tile - band * kBand * down;
    const int width = min(kBand, across - band * kBand);
    return {place / width * kRows, (band * kBand + place % width) * kColumns};
  }
};

// x, and W with its outputs 32 q + 8 t + 2 j + e in lines 32 q + 8 j + 2 t + e of their tile: of
// the sums of lines 8 j + 2 t and 8 j + 2 t + 1, which lane t of a quad has, those of four j are
// then of eight outputs one after the other, 16 bytes of y.
struct Maps {
  CUtensorMap x, w;

  Maps(const int8_t* x, int rows, const LinearWeight& weight)
      : x(tensor_map(x, {depth(weight), {uint64_t(rows), stride(weight), kRows}})),
        w(tensor_map(weight.data, {depth(weight),
                                   {2, stride(weight), 2},
                                   {4, 8 * stride(weight), 4},
                                   {4, 2 * stride(weight), 4},
                                   {weight.outputs / 32u, 32 * stride(weight), kColumns / 32}})) {}

 private:
  static uint64_t stride(const LinearWeight& weight) { return quantized_stride(weight.inputs); }
  static TensorAxis depth(const LinearWeight& weight) { return {stride(weight), 1, kDepth}; }
};

// By one thread.
__device__ __forceinline__ void produce(Shared& shared, const Tiles& tiles, const Maps& maps,
                                        int inputs) {
  unsigned item = 0;
  for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const int2 origin = tiles.origin(tile);
    for (int k = 0; k < inputs; k += kDepth, ++item) {
      const unsigned stage = item % kStages;
      uint64_t* const counter =
          shared.pipeline.producer_acquire(item, sizeof(shared.x[0]) + sizeof(shared.w[0]));
      copy_box(shared.x[stage], maps.x, counter, k, origin.x);
      copy_box(shared.w[stage], maps.w, counter, k, 0, 0, 0, origin.y / 32);
    }
  }
}

// Until all threads of a group of consumers are here.
__device__ __forceinline__ void sync_group(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kGroup) : "memory");
}

__device__ __forceinline__ Column load_column(const LinearWeight& weight, const float* bias,
                                              int column) {
  if (column >= weight.outputs) return {};
  return {weight.scale[column], bias != nullptr ? bias[column] : 0.0f};
}

// What a lane has of a tile's results, or of their residual: of rows `row` and `row` + 8 the
// columns from `column` + 32 i on, 16 bytes each.
template <typename T>
struct Results {
  static constexpr int kParts = kColumns / 32;
  uint4 parts[kParts][2];
  int row, column;

  // use(values, offset in y) for both rows of a part that are inside.
  template <typename Use>
  __device__ __forceinline__ void for_rows(const W8A8Params<T>& p, int part, Use&& use) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + 8 * h, n = column + part * 32;
      if (r >= p.rows || n >= p.weight.outputs) continue;
      use(parts[part][h], int64_t{r} * p.weight.outputs + n);
    }
  }
  __device__ __forceinline__ void load_residual(const W8A8Params<T>& p) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      for_rows(p, part, [&](uint4& values, int64_t at) {
        values = *reinterpret_cast<const uint4*>(p.residual + at);
      });
    }
  }
  // During one of so many steps: a share of all.
  __device__ __forceinline__ void store_some(const W8A8Params<T>& p, int step, int steps) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part * steps / kParts != step) continue;
      for_rows(p, part, [&](const uint4& values, int64_t at) {
        *reinterpret_cast<uint4*>(p.y + at) = values;
      });
    }
  }
  __device__ __forceinline__ void store(const W8A8Params<T>& p) { store_some(p, 0, 1); }

  // Of the sums; with `adds` behind the residual, which is here. columns: from the lane's first on.
  template <bool adds>
  __device__ __forceinline__ void scale(const Sums& sums, const float (&x_scale)[2],
                                        const Column* columns) {
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      const auto two = *reinterpret_cast<const float4*>(columns + i / 4 * 32 + i % 4 * 2);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t& pair = reinterpret_cast<uint32_t (&)[4]>(parts[i / 4][h])[i % 4];
        float2 y = {fmaf(sums[i][2 * h], two.x * x_scale[h], two.y),
                    fmaf(sums[i][2 * h + 1], two.z * x_scale[h], two.w)};
        if constexpr (adds) {
          const float2 more = unpack<T>(pair);
          y.x += more.x, y.y += more.y;
        }
        pair = pack<T>(y);
      }
    }
  }
};

template <bool adds, typename T>
__device__ __forceinline__ void consume(Shared& shared, const Tiles& tiles,
                                        const W8A8Params<T>& p) {
  const int steps = (quantized_stride(p.weight.inputs) + kDepth - 1) / kDepth;
  // The compiler does not know that all lanes have the same group.
  const int group = __shfl_sync(kAllLanes, threadIdx.x / kGroup, 0);
  const int thread = threadIdx.x % kGroup;
  const int own_row = threadIdx.x / kWarp * 16 + threadIdx.x % kWarp / 4;
  const int own_column = threadIdx.x % 4 * 8;
  Results<T> results;
  bool waiting = false;  // whether there are results that have not been stored
  unsigned item = 0, turn = 0;
  for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x, turn ^= 1) {
    const int2 origin = tiles.origin(tile);
    const int row = origin.x + own_row, column = origin.y + own_column;
    const Column loaded[] = {load_column(p.weight, p.bias, origin.y + thread),
                             load_column(p.weight, p.bias, origin.y + kGroup + thread)};
    const float x_scale[] = {row < p.rows ? p.x.scale[row] : 0.0f,
                             row + 8 < p.rows ? p.x.scale[row + 8] : 0.0f};
    if constexpr (adds) {
      results.row = row, results.column = column;
      results.load_residual(p);
    }
    Sums sums = {};
    for (int step = 0; step < steps; ++step, ++item) {
      const unsigned stage = item % kStages;
      shared.pipeline.consumer_wait(item);
      const uint64_t x = wgmma_tile(shared_address(shared.x[stage][group * kGroupRows]));
      const uint64_t w = wgmma_tile(shared_address(shared.w[stage]));
      wgmma_begin(sums);
#pragma unroll
      for (int k = 0; k < kDepth / 32; ++k) wgmma_int8(sums, x + 2 * k, w + 2 * k);
      wgmma_close();
      if (waiting) results.store_some(p, step, steps);
      if (step == 0) continue;
      wgmma_wait<1>();
      if (thread % kWarp == 0) shared.pipeline.consumer_release(item - 1);
    }
    Columns& columns = shared.columns[group][turn];  // the other one may still be read
    columns[thread] = loaded[0];
    columns[kGroup + thread] = loaded[1];
    sync_group(group);
    wgmma_wait<0>();
    pin(sums);
    if (thread % kWarp == 0) shared.pipeline.consumer_release(item - 1);
    results.row = row, results.column = column;
    results.template scale<adds>(sums, x_scale, columns + own_column);
    adds ? results.store(p) : void(waiting = true);
  }
  if (waiting) results.store(p);
}

template <bool adds, typename T>
__global__ void __launch_bounds__(kThreads, 1)
    w8a8_kernel(const W8A8Params<T> p, const __grid_constant__ Maps maps) {
  extern __shared__ __align__(1024) char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Tiles tiles(p.rows, p.weight.outputs);
  if (threadIdx.x == 0) {
    prefetch(maps.x), prefetch(maps.w);
    shared.pipeline.init(kConsumers / kWarp);
  }
  wait_for_previous();
  let_next_start();
  __syncthreads();
  if (threadIdx.x < kConsumers) {
    raise_registers<kOfConsumer>();
    consume<adds>(shared, tiles, p);
  } else {
    lower_registers<kOfProducer>();
    if (threadIdx.x == kConsumers) produce(shared, tiles, maps, p.weight.inputs);
  }
}

}  // namespace

template <typename T>
void w8a8_linear(Stream& stream, const W8A8Params<T>& p) {
  const int tiles = Tiles(p.rows, p.weight.outputs).count;
  launch(stream, p.residual != nullptr ? w8a8_kernel<true, T> : w8a8_kernel<false, T>,
         dim3(std::min(tiles, stream.device().multiprocessors)), dim3(kThreads), sizeof(Shared), p,
         Maps(p.x.data, p.rows, p.weight));
}

#define INSTANTIATE(T) template void w8a8_linear(Stream&, const W8A8Params<T>&);
INSTANTIATE(half)
INSTANTIATE(bfloat16)

}  // namespace decoding::cuda
