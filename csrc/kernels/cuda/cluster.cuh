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
// As arrive_at_cluster(), for blocks that need to know only that the others have begun.
__device__ __forceinline__ void announce_to_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void sync_cluster() {
  arrive_at_cluster();
  wait_for_cluster();
}

// Reads from this place of the shared memory of another block.
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

// Messages: numbers sent into the shared memory of another block of the cluster, where an mbarrier
// counts the bytes that have arrived, so that no thread waits for other memory.

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// A phase of `counter` is complete when so many threads have arrived.
__device__ __forceinline__ void expect_threads(uint64_t* counter, int threads) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %1;\n"
      "fence.mbarrier_init.release.cluster;" ::"r"(shared_address(counter)),
      "r"(threads)
      : "memory");
#endif
}
__device__ __forceinline__ void arrive(const uint64_t* counter) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(counter))
               : "memory");
#endif
}
// When all copies that the thread has started are there; they need not be closed.
__device__ __forceinline__ void arrive_behind_copies(const uint64_t* counter) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(counter))
               : "memory");
#endif
}

// A phase of `counter` is complete when one thread has said how many bytes it expects, and they are
// there.
__device__ __forceinline__ void expect_one_thread(uint64_t* counter) { expect_threads(counter, 1); }

__device__ __forceinline__ void expect_bytes(uint64_t* counter, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(counter)),
      "r"(bytes)
      : "memory");
#endif
}

// Writes to `place` and counts on `counter`, both as they lie in the shared memory of that block.
__device__ __forceinline__ void send(int block, const float* place, float value,
                                     const uint64_t* counter) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 to, count;\n"
      "mapa.shared::cluster.u32 to, %0, %3;\n"
      "mapa.shared::cluster.u32 count, %1, %3;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %2, [count];\n"
      "}" ::"r"(shared_address(place)),
      "r"(shared_address(counter)), "r"(__float_as_uint(value)), "r"(block)
      : "memory");
#endif
}

// Whether the phase of that parity is complete; the hardware may wait for it a while.
__device__ __forceinline__ bool complete(const uint64_t* counter, unsigned parity) {
  uint32_t done = 1;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.b32 %0, 1, 0, done;\n"
      "}"
      : "=r"(done)
      : "r"(shared_address(counter)), "r"(parity)
      : "memory");
#endif
  return done != 0;
}

}  // namespace decoding::cuda
