// Launches kernels one after the other, with as little between them as the hardware allows.
//
// On sm_90 a kernel is launched while the one before it still runs (programmatic dependent launch).
// Every kernel therefore begins in two parts:
//
//   ... load what no kernel of this step writes: weights, biases, tables ...
//   wait_for_previous();   // now everything before is complete and visible
//   let_next_start();      // the next kernel may begin its own first part
//
// No kernel may touch, before the wait, what the kernel right before it reads or writes. Since
// let_next_start() comes after the wait, what stems from kernels before that one is complete.
// On sm_80 both fall away. One exception: a norm with a warp for each row (row.cuh) lets the next
// kernel start before it waits itself. Norms are followed only by products and further norms, which
// touch nothing but weights before their wait.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/stream.h"

namespace decoding::cuda {

__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// More than 48 KiB of shared memory, what a kernel has of its own included, must be asked for.
template <typename... Params>
void allow_shared(void (*kernel)(Params...), size_t shared) {
  if (shared <= 32 * 1024) return;
  const auto* function = reinterpret_cast<const void*>(kernel);
  cudaFuncAttributes has;
  CUDA_CHECK(cudaFuncGetAttributes(&has, function));
  if (static_cast<size_t>(has.maxDynamicSharedSizeBytes) >= shared) return;
  // All that there is, since other threads may launch the kernel with less.
  int device = 0, most = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  CUDA_CHECK(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  most - static_cast<int>(has.sharedSizeBytes)));
}

constexpr int kPortableCluster = 8;  // blocks that every device runs together

// Blocks that run together, on sm_90. packed: several of them may share a multiprocessor, so that
// more clusters run at once; by default each has one of its own.
struct Cluster {
  Cluster(dim3 blocks, bool packed = false) : blocks(blocks), packed(packed) {}
  int size() const { return static_cast<int>(blocks.x * blocks.y * blocks.z); }

  dim3 blocks;
  bool packed;
};

// shared: bytes of dynamic shared memory.
template <typename... Params>
void launch_clusters(Stream& stream, void (*kernel)(Params...), Cluster cluster, dim3 grid,
                     dim3 block, size_t shared, std::type_identity_t<Params>... params) {
  const Device& device = stream.device();
  CHECK(shared <= static_cast<size_t>(device.shared_memory), "a step needs ", shared,
        " bytes of shared memory, a block on ", device.name, " may have ", device.shared_memory,
        ": lower num_beams");
  if (stream.warming_up()) return;
  allow_shared(kernel, shared);
  cudaLaunchAttribute attributes[3] = {};
  unsigned count = 0;
  if (device.hopper() && stream.overlaps()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster.size() > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {cluster.blocks.x, cluster.blocks.y, cluster.blocks.z};
  }
  if (cluster.packed) {
    attributes[count].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
    attributes[count++].val.clusterSchedulingPolicyPreference =
        cudaClusterSchedulingPolicyLoadBalancing;
  }
  if (cluster.size() > kPortableCluster) {
    CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream.handle();
  config.attrs = attributes;
  config.numAttrs = count;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params...));
}

template <typename... Params>
void launch(Stream& stream, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared,
            std::type_identity_t<Params>... params) {
  launch_clusters(stream, kernel, dim3(1), grid, block, shared, params...);
}

}  // namespace decoding::cuda
