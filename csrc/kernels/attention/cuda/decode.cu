// The contract on CUDA, and its instances without bias and rotary positions. Those with bias or
// with rotary positions are compiled in files of their own.
#include "kernels/attention/cuda/decode_algorithm.cuh"

namespace decoding {
namespace cuda {

#define INSTANTIATE(T)                                                                            \
  template void attend_to_history<false, false>(Stream&,                                          \
                                                std::span<const DecodeAttentionParams<T>>);       \
  extern template void attend_to_history<false, true>(Stream&,                                    \
                                                      std::span<const DecodeAttentionParams<T>>); \
  extern template void attend_to_history<true, true>(Stream&,                                     \
                                                     std::span<const DecodeAttentionParams<T>>);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace cuda

template <typename T>
void decode_attention(cuda::Stream& stream, std::span<const DecodeAttentionParams<T>> parts) {
  const DecodeAttentionParams<T>& p = parts.front();
  // A bias without rotary positions is T5's and BLOOM's: that their queries pass through shared
  // memory all the same costs less than a fourth set of kernels, which takes minutes to compile.
  if (p.bias.any()) {
    cuda::attend_to_history<true, true, T>(stream, parts);
  } else if (p.rotary.any()) {
    cuda::attend_to_history<false, true, T>(stream, parts);
  } else {
    cuda::attend_to_history<false, false, T>(stream, parts);
  }
}

#define INSTANTIATE(T) \
  template void decode_attention(cuda::Stream&, std::span<const DecodeAttentionParams<T>>);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
