// CUDA_CHECK(cudaMemcpyAsync(...)): throws Error with CUDA's own words.
#pragma once

#include <cuda_runtime_api.h>

#include "core/check.h"

// Tests preload it (tests/faults/allocator.c): whether the next call of CUDA is to fail. Else null.
extern "C" [[gnu::weak, gnu::visibility("default")]] bool decoding_cuda_fault();

namespace decoding::cuda {

// Whether a test has the next call fail, which is then not made.
inline bool has_fault() { return decoding_cuda_fault != nullptr && decoding_cuda_fault(); }

// After some errors CUDA refuses everything else that the process asks for.
inline const char* advice(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "; lower the limits, or free memory of the GPU";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorDevicesUnavailable:
      return "; the GPU is lost to this process: start it again";
    case cudaErrorNoKernelImageForDevice:
      return "; build with DECODING_CUDA_ARCHS naming this GPU's compute capability";
    default:
      return "";
  }
}

}  // namespace decoding::cuda

#define CUDA_CHECK(call)                                                                           \
  do {                                                                                             \
    const cudaError_t error_ = ::decoding::cuda::has_fault() ? cudaErrorMemoryAllocation : (call); \
    CHECK(error_ == cudaSuccess, "CUDA: ", cudaGetErrorString(error_),                             \
          ::decoding::cuda::advice(error_), " (", cudaGetErrorName(error_), " in ", #call, ")");   \
  } while (false)
