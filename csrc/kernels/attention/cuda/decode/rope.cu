// Instances of decode attention with rotary positions and without a bias.
#include "kernels/attention/cuda/decode/algorithm.cuh"

namespace decoding::cuda {

#define INSTANTIATE(T) \
  template void attend_to_history<false, true>(Stream&, std::span<const DecodeAttentionParams<T>>);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding::cuda
