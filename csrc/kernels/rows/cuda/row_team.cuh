// Threads that compute a row together: neighbouring lanes of a warp, a block, or a cluster of
// blocks. Rows stream through a team, while each of its threads stays with its columns.
//
// Threads that take part in the same shuffles and barriers (a warp, or the whole team) form a unit,
// and all threads of a unit go through the same number of rows.
#pragma once

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/vector.cuh"

namespace decoding::cuda {

struct Sum {
  static constexpr float kNeutral = 0.0f;
  __device__ __forceinline__ static float combine(float a, float b) { return a + b; }
};

struct Max {
  static constexpr float kNeutral = -INFINITY;
  __device__ __forceinline__ static float combine(float a, float b) { return fmaxf(a, b); }
};

// Every one of `lanes` neighbours gets the same bits, since a + b is b + a.
template <typename Reduction, int lanes>
__device__ __forceinline__ float over_lanes(float x) {
#pragma unroll
  for (int other = lanes / 2; other > 0; other /= 2) {
    x = Reduction::combine(x, __shfl_xor_sync(kAllLanes, x, other));
  }
  return x;
}

template <int lanes>
struct LaneTeam {
  static constexpr int kLanes = lanes;         // side by side in a warp
  static constexpr int kRows = kWarp / lanes;  // teams, so rows, side by side in a unit
  static constexpr int size = lanes;
  int rank = threadIdx.x % lanes;         // of this thread in its team
  int row = threadIdx.x % kWarp / lanes;  // of its team among those of the unit
  int unit = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
  int units = gridDim.x * blockDim.x / kWarp;

  // Reduces each of the values over the team.
  template <typename Reduction, int count>
  __device__ __forceinline__ void reduce(float (&values)[count]) {
#pragma unroll
    for (float& value : values) value = over_lanes<Reduction, lanes>(value);
  }
};

constexpr int kMostValues = 2;  // that a block or a cluster reduces at once

// One block, or `cluster` of them, which write into each other's shared memory (sm_90).
//
// A barrier of the cluster would wait for everything that its threads have under way, the loads of
// the next row among it. So blocks count what arrives from each other instead.
template <int cluster>
struct BlockTeam {
  // The warps' partial results. Two sets take turns, so that one barrier is enough: whoever writes
  // into a set again has seen the other set complete, for which all had to have read this one.
  struct Partials {
    float values[2][kMostValues][cluster * kWarp];
    uint64_t arrived[2];  // mbarriers
  };

  static constexpr int kLanes = kWarp;
  static constexpr int kRows = 1;
  Partials& found;
  int rank = blockIdx.x % cluster * blockDim.x + threadIdx.x;
  int size = cluster * blockDim.x;
  int row = 0;
  int unit = blockIdx.x / cluster;
  int units = gridDim.x / cluster;
  unsigned rounds = 0;

  __device__ explicit BlockTeam(Partials& shared) : found(shared) {
    if constexpr (cluster > 1) {
      if (threadIdx.x == 0) {
        for (uint64_t& counter : found.arrived) expect_one_thread(&counter);
      }
      sync_cluster();  // no block may be written to before it has begun
    }
  }

  template <typename Reduction, int count>
  __device__ __forceinline__ void reduce(float (&values)[count]) {
    const int lane = threadIdx.x % kWarp, warps = size / kWarp;
    const unsigned set = rounds % 2;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      values[i] = over_lanes<Reduction, kWarp>(values[i]);
      float* place = &found.values[set][i][rank / kWarp];
      if (cluster == 1 && lane == 0) *place = values[i];
      if (cluster > 1 && lane < cluster) send(lane, place, values[i], &found.arrived[set]);
    }
    if constexpr (cluster == 1) {
      __syncthreads();
    } else {
      if (threadIdx.x == 0) expect_bytes(&found.arrived[set], count * warps * sizeof(float));
      while (!complete(&found.arrived[set], rounds / 2 % 2)) {
      }
    }
    ++rounds;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      float all = Reduction::kNeutral;
#pragma unroll
      for (int first = 0; first < cluster * kWarp; first += kWarp) {
        if (first + lane < warps) {
          all = Reduction::combine(all, found.values[set][i][first + lane]);
        }
      }
      values[i] = over_lanes<Reduction, kWarp>(all);
    }
  }
};

}  // namespace decoding::cuda
