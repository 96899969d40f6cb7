// Who computes a row together: neighbouring lanes of a warp, a block, or a cluster of blocks. Rows
// stream through a team, while each of its threads stays with its columns.
//
// A team takes several rows in one turn. Threads that take part in the same shuffles and barriers
// (a warp, or the whole team) form a unit, and all threads of a unit run the same number of turns.
#pragma once

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
  static constexpr int kRows = kWarp / lanes;  // teams, so rows, side by side in a unit
  int rank = threadIdx.x % lanes;              // of this thread in its team
  int size = lanes;
  int row = threadIdx.x % kWarp / lanes;  // of its team among those of the unit
  int unit = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
  int units = gridDim.x * blockDim.x / kWarp;

  template <typename Reduction, int rows>
  __device__ __forceinline__ void reduce(float (&x)[rows]) {
#pragma unroll
    for (int r = 0; r < rows; ++r) x[r] = over_lanes<Reduction, lanes>(x[r]);
  }
};

// One block, or `cluster` of them, which write into each other's shared memory (sm_90).
template <int cluster, int kMostRows>
struct BlockTeam {
  // What the warps found. Two sets in turns, so that one barrier is enough: before anybody writes
  // into a set again, all have passed the other set's barrier and so have read this one.
  using Found = float[2][kMostRows][cluster * kWarp];

  static constexpr int kRows = 1;
  Found& found;
  int rank = blockIdx.x % cluster * blockDim.x + threadIdx.x;
  int size = cluster * blockDim.x;
  int row = 0;
  int unit = blockIdx.x / cluster;
  int units = gridDim.x / cluster;
  int set = 0;

  __device__ explicit BlockTeam(Found& shared) : found(shared) {
    if constexpr (cluster > 1) barrier();  // nobody may write to a block that has not begun
  }

  template <typename Reduction, int rows>
  __device__ __forceinline__ void reduce(float (&x)[rows]) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      x[r] = over_lanes<Reduction, kWarp>(x[r]);
      if (lane < cluster) tell(lane, &found[set][r][rank / kWarp], x[r]);
    }
    barrier();
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      float all = Reduction::kNeutral;
#pragma unroll
      for (int first = 0; first < cluster * kWarp; first += kWarp) {
        if (first + lane < size / kWarp) {
          all = Reduction::combine(all, found[set][r][first + lane]);
        }
      }
      x[r] = over_lanes<Reduction, kWarp>(all);
    }
    set ^= 1;
  }

 private:
  __device__ __forceinline__ static void barrier() {
    if constexpr (cluster == 1) {
      __syncthreads();
    } else {
#if __CUDA_ARCH__ >= 900
      asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
      asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }
  }

  // Writes to where `to` lies in the shared memory of that block of the cluster.
  __device__ __forceinline__ static void tell(int block, float* to, float value) {
    if constexpr (cluster == 1) {
      *to = value;
    } else {
#if __CUDA_ARCH__ >= 900
      uint32_t address = __cvta_generic_to_shared(to);
      asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(block));
      asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
#endif
    }
  }
};

}  // namespace decoding::cuda
