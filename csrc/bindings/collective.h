// The collectives that sessions and engines of a split model take.
#pragma once

#include "kernels/cpu/collective.h"
#ifdef DECODING_CUDA
#include "kernels/cuda/collective.h"
#endif

namespace decoding {

#ifdef DECODING_CUDA
using CudaCollective = cuda::Collective;
#else
struct CudaCollective {};  // there is none
#endif

}  // namespace decoding
