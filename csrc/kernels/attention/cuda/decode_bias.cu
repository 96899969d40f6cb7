// Attention of a step's rows with rules of scores, whose queries and keys may turn.
#include "kernels/attention/cuda/decode_algorithm.cuh"

namespace decoding::cuda {

#define INSTANTIATE(T) \
  template void attend_to_history<true, true>(Stream&, const DecodeAttentionParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding::cuda
