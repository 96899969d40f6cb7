// The number of blocks of a kernel that a device runs at once.
#pragma once

#include "kernels/cuda/launch.cuh"

namespace decoding::cuda {

inline int divide_up(int a, int b) { return (a + b - 1) / b; }
inline int whole_warps(int threads) { return divide_up(threads, 32) * 32; }

template <typename... Params>
int most_blocks(const Stream& stream, void (*kernel)(Params...), int threads) {
  int each = 0;
  CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, 0));
  return each * stream.device().multiprocessors;
}

// Blocks of a cluster lie in one group of multiprocessors, and groups differ in size.
template <typename... Params>
int most_clusters(void (*kernel)(Params...), int cluster, int threads, size_t shared = 0) {
  allow_shared(kernel, shared);
  cudaLaunchAttribute size{};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = cluster;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared;
  config.attrs = &size;
  config.numAttrs = 1;
  int clusters = 0;
  CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  return clusters;
}

}  // namespace decoding::cuda
