// Attention of a step's rows whose queries and keys turn.
#include "kernels/attention/cuda/decode_algorithm.cuh"

namespace decoding::cuda {

#define INSTANTIATE(T) \
  template void attend_to_history<false, true>(Stream&, const DecodeAttentionParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding::cuda
