// Decode attention to keys and values in e4m3.
#include "kernels/attention/cuda/decode/algorithm.cuh"

namespace decoding {

template <typename T, typename C>
void decode_attention(cuda::Stream& stream, std::span<const DecodeAttentionParams<T, C>> parts) {
  cuda::attend_to_history(stream, parts);
}

#define INSTANTIATE(T) \
  template void decode_attention(cuda::Stream&, std::span<const DecodeAttentionParams<T, Float8>>);
DECODING_FOR_HALVES(INSTANTIATE)

}  // namespace decoding
