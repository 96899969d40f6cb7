// The memory of an encoder without a decoder, and its pass.
#pragma once

#include "engine/model/encoder.h"

namespace decoding {

template <typename T>
struct EncoderWorkspace {
  SourceInputs source;  // at the head of the pool, so that a GPU receives it in one copy
  uint8_t* products = nullptr;
  Activations<T> packed;

  EncoderWorkspace() = default;
  // product_bytes: scratch of the backend's products.
  EncoderWorkspace(Arena& a, const StackSpec& spec, const Limits& limits, int64_t product_bytes) {
    const int64_t tokens = int64_t{limits.batch} * limits.source;
    source = SourceInputs(a, limits.batch, tokens);
    products = a.take<uint8_t>("products", {product_bytes});
    packed = Activations<T>(a, "encoder", spec, tokens, products, spec.int8_activations);
  }
};

inline void check_encodable(const Batch& batch, const StackSpec& spec, const Limits& limits) {
  CHECK(batch.sentences > 0 && batch.sentences <= limits.batch, "batch must be 1 to ", limits.batch,
        ", got ", batch.sentences);
  check_source(batch, spec, limits);
}

// states: [tokens, H]
template <typename Stream, typename T>
void encode_states(const StackPass<Stream, T>& p, const PackedTokens& tokens,
                   const OverflowView& overflow, T* states) {
  const PackedLook<Stream, T> look_at{p.stream, overflow, true, nullptr, tokens.count};
  const Norm norm = encoder_pass(p, tokens, look_at);
  layer_norm<T>(
      p.stream,
      {.x = p.a.x, .norm = norm, .y = states, .rows = tokens.count, .cols = p.spec.hidden});
  look_at(p.spec.layers - 1, Site::output, states, p.spec.hidden);
}

}  // namespace decoding
