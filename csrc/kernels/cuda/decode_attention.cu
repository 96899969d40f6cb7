// Attention of a step's rows: those without rules of scores, the others are in
// decode_attention_ruled.cu.
#include "kernels/cuda/decode_design.cuh"

namespace decoding {
namespace cuda {

#define INSTANTIATE(T)                                                              \
  template void attend_to_history<false>(Stream&, const DecodeAttentionParams<T>&); \
  extern template void attend_to_history<true>(Stream&, const DecodeAttentionParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace cuda

template <typename T>
void decode_attention(cuda::Stream& stream, const DecodeAttentionParams<T>& p) {
  if (p.sentences == 0) return;
  p.rules.any() ? cuda::attend_to_history<true>(stream, p)
                : cuda::attend_to_history<false>(stream, p);
}

#define INSTANTIATE(T) \
  template void decode_attention(cuda::Stream&, const DecodeAttentionParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
