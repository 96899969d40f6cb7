// The types that a GPU keeps keys and values in, beside those of its other numbers.
#pragma once

#include "core/check.h"
#include "core/spec.h"
#include "kernels/attention/pages.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/types.h"

namespace decoding {

// Throws where keys and values of C cannot be: see kernels/attention/cuda/float8.cuh.
template <typename C>
void check_cache(const ModelSpec& spec, const cuda::Device& device) {
  if constexpr (!kIsFloat8<C>) return;
  const StackSpec& d = spec.decoder;
  CHECK(device.converts_float8(),
        "keys and values in fp8 need a GPU of compute capability 8.9 or higher, and an engine that "
        "is compiled for one: leave kv_cache_dtype out");
  CHECK(d.head_dim % 8 == 0, "keys and values in fp8 need heads whose size is a multiple of 8, ",
        "this model's have ", d.head_dim, ": leave kv_cache_dtype out");
  CHECK(!d.convolution, "a decoder of convolutions keeps inputs and no keys, which fp8 is for: ",
        "leave kv_cache_dtype out");
}

// make<T, C>(): T of the numbers of `kind`, C of keys and values.
template <typename Make>
auto for_cache_types(WeightKind kind, WeightKind cache, Make&& make) {
  const bool narrow = cache == WeightKind::float8;
  CHECK(cache == kind || (narrow && kind != WeightKind::float32),
        "keys and values must be of the model's type, or fp8 beside float16 and bfloat16");
  switch (kind) {
    case WeightKind::float32:
      return make.template operator()<float, float>();
    case WeightKind::float16:
      return narrow ? make.template operator()<cuda::half, Float8>()
                    : make.template operator()<cuda::half, cuda::half>();
    case WeightKind::bfloat16:
      return narrow ? make.template operator()<cuda::bfloat16, Float8>()
                    : make.template operator()<cuda::bfloat16, cuda::bfloat16>();
    default:
      throw Error("these weights have no CUDA engine");
  }
}

}  // namespace decoding
