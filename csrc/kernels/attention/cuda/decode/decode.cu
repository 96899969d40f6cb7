// The contract on CUDA, and its instances without bias and rotary positions. Those with bias, with
// rotary positions or for e4m3 are compiled in files of their own.
#include "kernels/attention/cuda/decode/algorithm.cuh"

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

template <typename T, typename C>
void decode_attention(cuda::Stream& stream, std::span<const DecodeAttentionParams<T, C>> parts) {
  cuda::attend_to_history(stream, parts);
}

#define INSTANTIATE(T) \
  template void decode_attention(cuda::Stream&, std::span<const DecodeAttentionParams<T>>);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
