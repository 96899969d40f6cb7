// The contract on CUDA, and its instances without bias and rotary positions. Those with bias or
// with rotary positions are compiled in files of their own.
#include "kernels/attention/cuda/decode_algorithm.cuh"

namespace decoding {
namespace cuda {

#define INSTANTIATE(T)                                                                           \
  template void attend_to_history<false, false>(Stream&, const DecodeAttentionParams<T>&);       \
  extern template void attend_to_history<false, true>(Stream&, const DecodeAttentionParams<T>&); \
  extern template void attend_to_history<true, true>(Stream&, const DecodeAttentionParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace cuda

template <typename T>
void decode_attention(cuda::Stream& stream, const DecodeAttentionParams<T>& p) {
  if (p.sentences == 0) return;
  // A bias without rotary positions is T5's and BLOOM's: that their queries pass through shared
  // memory all the same costs less than a fourth set of kernels, which takes minutes to compile.
  if (p.bias.any()) {
    cuda::attend_to_history<true, true>(stream, p);
  } else if (p.rotary.any()) {
    cuda::attend_to_history<false, true>(stream, p);
  } else {
    cuda::attend_to_history<false, false>(stream, p);
  }
}

#define INSTANTIATE(T) \
  template void decode_attention(cuda::Stream&, const DecodeAttentionParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
