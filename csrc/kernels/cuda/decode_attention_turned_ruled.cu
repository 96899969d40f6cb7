// Attention of a step's rows whose queries and keys turn, with rules of scores.
#include "kernels/cuda/decode_design.cuh"

namespace decoding::cuda {

#define INSTANTIATE(T) \
  template void attend_to_history<true, true>(Stream&, const DecodeAttentionParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding::cuda
