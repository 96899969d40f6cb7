// Chooses kernels for a step's attention. with_bias: scores have a bias; with_rope: queries and
// keys have a rotary transformation. A kernel without them has no branch for them.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention/cuda/decode/beams.cuh"
#include "kernels/attention/cuda/decode/heads.cuh"

namespace decoding::cuda {

// To cells of T. params: of a part, or parts.
template <bool with_bias, bool with_rope, typename T, typename Params>
void attend_to_wide(Stream& stream, const Params& params) {
  constexpr int kWidth = 16 / sizeof(T);
  const DecodeAttentionParams<T>& p = first_part(params);
  const auto whole = [](const T* data, int64_t stride) { return aligned16<T>(data, stride); };
  const bool aligned = p.head_dim % kWidth == 0 && whole(p.q, p.stride) && whole(p.k, p.stride) &&
                       whole(p.v, p.stride) && whole(p.pool.k, 0) && whole(p.pool.v, 0) &&
                       whole(p.y, 0);
  const auto for_beams = [&]<typename S>(S) {
    attend_for_beams<with_bias, with_rope, T, S>(stream, params);
  };
  if (!aligned) return for_beams(DecodeConfig<1, 32, kMaxHeadDim / 32>{});
  if constexpr (sizeof(T) == 2) {
    if (p.kv_heads < p.heads) return attend_for_heads<with_bias, with_rope, T, T>(stream, params);
  }
  if (p.head_dim <= 64) {
    for_beams(DecodeConfig<kWidth, 64 / kWidth, 1>{});
  } else if (p.head_dim <= 128) {
    for_beams(DecodeConfig<kWidth, 128 / kWidth, 1>{});
  } else {
    for_beams(DecodeConfig<kWidth, 32, kMaxHeadDim / kWidth / 32>{});
  }
}

// Cells of e4m3 must be widened for a product anyhow, which tensor cores do fastest.
template <bool with_bias, bool with_rope, typename T, typename C, typename Params>
void attend(Stream& stream, const Params& params) {
  if constexpr (kIsFloat8<C>) {
    attend_for_heads<with_bias, with_rope, T, C>(stream, params);
  } else {
    attend_to_wide<with_bias, with_rope, T>(stream, params);
  }
}

// Parts whose rows read for themselves anyhow have one launch, and so have few rows, but for those
// of beams that share prompts, which may be long.
template <bool with_bias, bool with_rope, typename T, typename C>
void attend_to_history(Stream& stream, std::span<const DecodeAttentionParams<T, C>> parts) {
  int64_t blocks = 0;
  for (const auto& p : parts) blocks += int64_t{rows_of(p)} * p.kv_heads;
  const bool few = is_few(stream, blocks), alone = parts.size() == 1 || stream.deterministic();
  AttentionParts<T, C> together;
  for (const auto& p : parts) {
    if (p.sentences == 0) continue;
    const bool by_row = p.beams == 1 || (few && (p.k == nullptr || shares_little(p)));
    if (by_row && !alone) {
      together.add(p);
    } else {
      attend<with_bias, with_rope, T, C>(stream, p);
    }
  }
  if (together.count > 0) attend<with_bias, with_rope, T, C>(stream, together);
}

// A bias without rotary positions is T5's and BLOOM's: that their queries pass through shared
// memory all the same costs less than another set of kernels, which takes minutes to compile. With
// e4m3 those of all models do.
template <typename T, typename C>
void attend_to_history(Stream& stream, std::span<const DecodeAttentionParams<T, C>> parts) {
  const DecodeAttentionParams<T, C>& p = parts.front();
  if (p.bias.any()) return attend_to_history<true, true>(stream, parts);
  if constexpr (!kIsFloat8<C>) {
    if (!p.rotary.any()) return attend_to_history<false, false>(stream, parts);
  }
  attend_to_history<false, true>(stream, parts);
}

}  // namespace decoding::cuda
