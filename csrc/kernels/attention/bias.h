// The bias of an attention score, from scale * q k^T to the softmax's input. With d the distance,
// the query's position less the key's:
//
//   x = cap * tanh(x / cap)                   Gemma 2's cap
//   x = x - slope[head] * d                   ALiBi (Press et al. 2022)
//   x = x + table[head][clamp(d) + reach]     T5's relative positions (Raffel et al. 2020)
//   x = -inf where d >= window                Mistral's sliding window
#pragma once

namespace decoding {

struct AttentionBias {
  float cap = 0.0f;               // 0: none
  int window = 0;                 // 0: none
  const float* slopes = nullptr;  // [N], null: none
  const float* table = nullptr;   // [N, 2 * reach + 1], null: none; d clamped to -reach .. reach
  int reach = 0;

  bool any() const { return cap > 0 || window > 0 || slopes != nullptr || table != nullptr; }
};

}  // namespace decoding
