// Chooses a kernel for a step's attention. with_bias: scores have a bias; with_rope: queries and
// keys have a rotary transformation. A kernel without them has no branch for them.
#pragma once

#include "kernels/attention/cuda/decode_beams.cuh"
#include "kernels/attention/cuda/decode_heads.cuh"

namespace decoding::cuda {

template <bool with_bias, bool with_rope, typename T>
void attend_to_history(Stream& stream, const DecodeAttentionParams<T>& p) {
  constexpr int kWidth = 16 / sizeof(T);
  const auto whole = [](const T* data, int64_t stride) { return aligned16<T>(data, stride); };
  const bool aligned = p.head_dim % kWidth == 0 && whole(p.q, p.stride) && whole(p.k, p.stride) &&
                       whole(p.v, p.stride) && whole(p.pool.k, 0) && whole(p.pool.v, 0) &&
                       whole(p.y, 0);
  if (!aligned) {
    return attend_for_beams<with_bias, with_rope, T, DecodeConfig<1, 32, kMaxHeadDim / 32>>(stream,
                                                                                            p);
  }
  if constexpr (sizeof(T) == 2) {
    if (p.kv_heads < p.heads) return attend_for_heads<with_bias, with_rope>(stream, p);
  }
  if (p.head_dim <= 64) {
    attend_for_beams<with_bias, with_rope, T, DecodeConfig<kWidth, 64 / kWidth, 1>>(stream, p);
  } else if (p.head_dim <= 128) {
    attend_for_beams<with_bias, with_rope, T, DecodeConfig<kWidth, 128 / kWidth, 1>>(stream, p);
  } else {
    attend_for_beams<with_bias, with_rope, T, DecodeConfig<kWidth, 32, kMaxHeadDim / kWidth / 32>>(
        stream, p);
  }
}

}  // namespace decoding::cuda
