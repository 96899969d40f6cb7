// CUDA_CHECK(cudaMemcpyAsync(...)): throws Error with CUDA's own words.
#pragma once

#include <cuda_runtime_api.h>

#include "core/check.h"

#define CUDA_CHECK(call)                                                     \
  do {                                                                       \
    const cudaError_t error_ = (call);                                       \
    CHECK(error_ == cudaSuccess, "CUDA: ", cudaGetErrorString(error_), " (", \
          cudaGetErrorName(error_), ") in ", #call);                         \
  } while (false)
