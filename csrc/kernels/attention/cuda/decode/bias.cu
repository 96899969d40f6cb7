// Instances of decode attention with a bias, with or without rotary positions.
#include "kernels/attention/cuda/decode/algorithm.cuh"

namespace decoding::cuda {

#define INSTANTIATE(T) \
  template void attend_to_history<true, true>(Stream&, std::span<const DecodeAttentionParams<T>>);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding::cuda
