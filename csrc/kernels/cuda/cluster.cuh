// Thread block clusters of sm_90: blocks that run at the same time and read
// each other's shared memory. Code for sm_80 compiles, but must not be
// launched.
#pragma once

#include <cstdint>

namespace decoding::cuda {

// All threads of all blocks of the cluster arrive, and then wait for each other: what they wrote to
// shared memory before they arrived is visible.
__device__ __forceinline__ void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void meet_cluster() {
  arrive_at_cluster();
  wait_for_cluster();
}

// What lies at this place of the shared memory of another block.
__device__ __forceinline__ float load_from_block(unsigned block, const float* from) {
  float value = 0.0f;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n .reg .b32 at;\n mapa.shared::cluster.u32 at, %1, %2;\n"
      " ld.shared::cluster.f32 %0, [at];\n}"
      : "=f"(value)
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))), "r"(block)
      : "memory");
#endif
  return value;
}
__device__ __forceinline__ float4 load_from_block(unsigned block, const float4* from) {
  float4 values{};
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n .reg .b32 at;\n mapa.shared::cluster.u32 at, %4, %5;\n"
      " ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [at];\n}"
      : "=f"(values.x), "=f"(values.y), "=f"(values.z), "=f"(values.w)
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))), "r"(block)
      : "memory");
#endif
  return values;
}

// Writes to this place of the shared memory of another block, which must have begun.
__device__ __forceinline__ void store_to_block(unsigned block, float2* to, float2 values) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n .reg .b32 at;\n mapa.shared::cluster.u32 at, %0, %1;\n"
      " st.shared::cluster.v2.f32 [at], {%2, %3};\n}" ::"r"(
          static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "r"(block), "f"(values.x), "f"(values.y)
      : "memory");
#endif
}

}  // namespace decoding::cuda
