// The element types of the CUDA engine. Host code includes this too.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/arena.h"

namespace decoding {
namespace cuda {

using half = __half;
using bfloat16 = __nv_bfloat16;

}  // namespace cuda

template <>
inline const char* type_name<cuda::half>() {
  return "float16";
}
template <>
inline const char* type_name<cuda::bfloat16>() {
  return "bfloat16";
}

}  // namespace decoding

// Defines a contract's overload for every element type: DECODING_FOR_TYPES(INSTANTIATE). setup.py
// compiles the files that take longest once for each type, which is then the only one.
// DECODING_FOR_HALVES does it for those of 2 bytes.
#ifdef DECODING_TYPE
#define DECODING_FOR_TYPES(instantiate) instantiate(DECODING_TYPE)
#define DECODING_FOR_HALVES(instantiate) instantiate(DECODING_TYPE)
#else
#define DECODING_FOR_HALVES(instantiate) \
  instantiate(::decoding::cuda::half) instantiate(::decoding::cuda::bfloat16)
#define DECODING_FOR_TYPES(instantiate) instantiate(float) DECODING_FOR_HALVES(instantiate)
#endif
