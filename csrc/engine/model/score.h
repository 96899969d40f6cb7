// Teacher forcing: the decoder reads given tokens, all at once on packed rows, and what it would
// have said behind each is compared with a label.
#pragma once

#include <algorithm>

#include "engine/model/encoder.h"
#include "engine/model/labelled.h"
#include "kernels/rows/logprobs.h"

namespace decoding {

inline PackedTokens forced_tokens(const Inputs& in, const Labelled& given) {
  return {in.forced_ids,     in.forced_at,
          in.forced_offsets, given.source.sentences,
          given.tokens(),    longest_of(given.offsets, given.source.sentences)};
}

// Every token attends to its sentence's source.
template <typename T, typename C, typename Stream>
void packed_cross_attention(Stream& stream, const ModelSpec& spec, const LayerWeights& layer,
                            Norm& due, const Workspace<T>& w, const Cache<C>& cache,
                            const Limits& limits, const PackedTokens& tokens, int i) {
  const StackSpec& d = spec.decoder;
  const Activations<T>& a = w.forced;
  const int64_t capacity = int64_t{limits.batch} * limits.source;
  const int64_t before = d.kv_before(i) * capacity;
  const auto block = enter_block(d, layer.cross_norm, due, a);
  first_product<T>(stream, layer.cross_q, block, a, a.qkv, tokens.count);
  packed_attention(stream, PackedAttentionParams<T, C>{.q = a.qkv,
                                                       .k = cache.cross_k + before,
                                                       .v = cache.cross_v + before,
                                                       .offsets = tokens.offsets,
                                                       .key_offsets = w.inputs.source.offsets,
                                                       .y = a.attended,
                                                       .sentences = tokens.sentences,
                                                       .longest = tokens.longest,
                                                       .heads = d.heads[i],
                                                       .kv_heads = d.kv_heads[i],
                                                       .head_dim = d.head_dim,
                                                       .stride = d.inner(i),
                                                       .key_stride = d.head_dim,
                                                       .head_stride = capacity * d.head_dim,
                                                       .scale = d.attention_scale[i],
                                                       .causal = false});
  last_product<T>(stream, layer.cross_out, layer.cross_post, block.residual, a, a.attended,
                  tokens.count);
}

// Leaves the decoder's output in w.forced.x, up to the norm that is returned.
template <typename T, typename C, typename Stream>
Norm forced_pass(Stream& stream, const ModelSpec& spec, const ModelWeights& weights,
                 const Workspace<T>& w, const Cache<C>& cache, const Limits& limits,
                 const PackedTokens& tokens) {
  const StackSpec& d = spec.decoder;
  const Activations<T>& a = w.forced;
  embed_packed(stream, d, weights.decoder, a, tokens);
  Norm due;
  for (int i = 0; i < d.layers; ++i) {
    const LayerWeights& layer = weights.decoder.layers[i];
    packed_self_attention(stream, d, weights.decoder, due, a, tokens, true, i, [](int) {});
    if (spec.encoder) packed_cross_attention(stream, spec, layer, due, w, cache, limits, tokens, i);
    feed_forward(stream, d, layer, due, a, tokens.count);
  }
  return last_norm(stream, d, weights.decoder, due, a, tokens.count);
}

// Fills w.logprobs. The logits of all tokens would be large: they are made in chunks.
template <typename T, typename C, typename Stream>
void score_labels(Stream& stream, const ModelSpec& spec, const ModelWeights& weights,
                  const Workspace<T>& w, const Cache<C>& cache, const Limits& limits,
                  const PackedTokens& tokens) {
  const StackSpec& d = spec.decoder;
  const Norm norm = forced_pass(stream, spec, weights, w, cache, limits, tokens);
  for (int begin = 0; begin < tokens.count; begin += kForcedRows) {
    const int rows = std::min(kForcedRows, tokens.count - begin);
    linear<T>(stream, {.x = w.forced.x + int64_t{begin} * d.hidden,
                       .norm = norm,
                       .normed = w.forced.normed,
                       .weight = weights.output.weight,
                       .bias = weights.output.bias,
                       .y = w.forced_logits,
                       .scratch = w.forced.scratch,
                       .rows = rows,
                       .stride = w.logits_stride});
    cap_logits(stream, spec, w.forced_logits, rows, d.vocab, w.logits_stride);
    label_logprobs<T>(stream, {.logits = w.forced_logits,
                               .labels = w.inputs.labels + begin,
                               .y = w.logprobs + begin,
                               .rows = rows,
                               .vocab = d.vocab,
                               .stride = w.logits_stride});
  }
}

}  // namespace decoding
