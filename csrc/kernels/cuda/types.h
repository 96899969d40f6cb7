// The element types of the CUDA engine. Host code includes this too.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace decoding::cuda {

using half = __half;
using bfloat16 = __nv_bfloat16;

}  // namespace decoding::cuda

// Defines a contract's overload for every element type: DECODING_FOR_TYPES(INSTANTIATE).
#define DECODING_FOR_TYPES(instantiate) \
  instantiate(float) instantiate(::decoding::cuda::half) instantiate(::decoding::cuda::bfloat16)
