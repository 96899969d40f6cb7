// Copies by the tensor memory accelerator (TMA) of Hopper, which one thread starts, and a ring of
// stages in shared memory that they fill, as CUTLASS's PipelineTmaAsync: no one waits but for the
// stage that it needs. Item i is in stage i % stages.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cluster.cuh"

namespace decoding::cuda {

// An axis of an array of bytes, the first one without gaps.
struct TensorAxis {
  uint64_t size;
  uint64_t stride;  // bytes, a multiple of 16; of the first axis 1
  uint32_t box;     // how many are copied at once
};

// The driver's function, which is looked for by its name, as libcuda is not linked.
inline auto tensor_map_encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                              cudaEnableDefault, &result));
  CHECK(result == cudaDriverEntryPointSuccess,
        "the NVIDIA driver has no cuTensorMapEncodeTiled: update it to one for CUDA 12 or later");
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}

// What copies are told of an array, of at most five axes. Its boxes come to shared memory in lines
// of the first axis' 128 bytes, whose 16-byte chunks are permuted as wgmma.cuh says; what is
// outside is 0.
inline CUtensorMap tensor_map(const void* data, std::initializer_list<TensorAxis> axes) {
  static const auto encode = tensor_map_encoder();
  cuuint64_t sizes[5] = {}, strides[5] = {};
  cuuint32_t box[5] = {}, steps[5] = {};
  cuuint32_t rank = 0;
  for (const TensorAxis& axis : axes) {
    sizes[rank] = axis.size;
    if (rank > 0) strides[rank - 1] = axis.stride;
    box[rank] = axis.box;
    steps[rank++] = 1;
  }
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, rank, const_cast<void*>(data), sizes, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled failed with error ", int{result});
  return map;
}

// A box of a map, from these places of its axes on. Its bytes count on `counter`.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap& map, uint64_t* counter, int a,
                                         int b) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(counter)), "r"(a), "r"(b)
      : "memory");
#endif
}
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap& map, uint64_t* counter, int a,
                                         int b, int c, int d, int e) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(counter)), "r"(a), "r"(b), "r"(c), "r"(d), "r"(e)
      : "memory");
#endif
}
// Fetches the map itself, before it is needed.
__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
#if __CUDA_ARCH__ >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

template <int stages>
class TmaPipeline {
 public:
  // By one thread, before all others go on. consumers: that release each item.
  __device__ void init(int consumers) {
#pragma unroll
    for (int i = 0; i < stages; ++i) {
      expect_one_thread(&full_[i]);
      expect_threads(&empty_[i], consumers);
    }
  }

  // By the thread that copies: until item i's stage has been read. The counter for its `bytes`.
  __device__ uint64_t* producer_acquire(unsigned i, unsigned bytes) {
    if (i >= stages) wait(empty_[i % stages], i / stages - 1);
    expect_bytes(&full_[i % stages], bytes);
    return &full_[i % stages];
  }
  __device__ void consumer_wait(unsigned i) const { wait(full_[i % stages], i / stages); }
  __device__ void consumer_release(unsigned i) const { arrive(&empty_[i % stages]); }

 private:
  __device__ static void wait(const uint64_t& barrier, unsigned phase) {
    while (!complete(&barrier, phase % 2)) {
    }
  }

  uint64_t full_[stages], empty_[stages];
};

}  // namespace decoding::cuda
