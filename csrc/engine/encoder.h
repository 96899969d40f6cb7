// The packed pass: all tokens of all sentences at once, without padding. It is the encoder, and,
// causal, the prompt of a decoder-only model.
#pragma once

#include "engine/blocks.h"
#include "kernels/attention.h"
#include "kernels/embed.h"

namespace decoding {

// Fills a.x with the stack's output, before its final norm.
// after_qkv(i): called when a.qkv holds layer i's queries, keys and values.
template <typename T, typename Stream, typename AfterQkv>
void packed_pass(Stream& stream, const StackSpec& spec, const StackWeights& weights,
                 const Activations<T>& a, const int32_t* ids, const int32_t* offsets, int sentences,
                 int tokens, bool causal, AfterQkv&& after_qkv) {
  const int inner = spec.heads * spec.head_dim;
  embed<T>(stream, {.ids = ids,
                    .at = a.at,
                    .token_table = weights.tokens,
                    .position_table = weights.positions,
                    .gamma = weights.embed_norm.gamma,
                    .beta = weights.embed_norm.beta,
                    .y = a.x,
                    .rows = tokens,
                    .hidden = spec.hidden,
                    .scale = spec.embed_scale,
                    .eps = spec.eps});
  for (int i = 0; i < spec.layers; ++i) {
    const LayerWeights& layer = weights.layers[i];
    const T* x = block_input(stream, spec, layer.self_norm, a, tokens);
    linear<T>(
        stream,
        {.x = x, .weight = layer.qkv.weight, .bias = layer.qkv.bias, .y = a.qkv, .rows = tokens});
    after_qkv(i);
    packed_attention<T>(stream, {.q = a.qkv,
                                 .k = a.qkv + inner,
                                 .v = a.qkv + 2 * inner,
                                 .offsets = offsets,
                                 .y = a.h,
                                 .sentences = sentences,
                                 .heads = spec.heads,
                                 .head_dim = spec.head_dim,
                                 .stride = 3 * inner,
                                 .scale = spec.attention_scale[i],
                                 .causal = causal});
    block_output<T>(stream, spec, layer.self_norm, layer.self_out, a.h, a, tokens);
    feed_forward(stream, spec, layer, a, tokens);
  }
}

// Runs the encoder, and stores the keys and values that every decoder layer attends to.
template <typename T, typename Stream>
void encode(Stream& stream, const ModelSpec& spec, const ModelWeights& weights,
            const Workspace<T>& w, int sentences, int tokens, int capacity) {
  const StackSpec& d = spec.decoder;
  const Activations<T>& a = w.packed;
  packed_pass(stream, *spec.encoder, *weights.encoder, a, w.source_ids, w.source_offsets, sentences,
              tokens, false, [](int) {});
  if (spec.encoder->final_norm) {
    normalize<T>(stream, *spec.encoder, weights.encoder->norm, a.x, a.x, tokens);
  }
  const int inner = d.heads * d.head_dim;
  const size_t layer_size = size_t(d.heads) * capacity * d.head_dim;
  for (int i = 0; i < d.layers; ++i) {
    const Linear& kv = weights.decoder.layers[i].cross_kv;
    linear<T>(stream,
              {.x = a.x, .weight = kv.weight, .bias = kv.bias, .y = w.packed_kv, .rows = tokens});
    store_shared<T>(stream, {.k = w.packed_kv,
                             .v = w.packed_kv + inner,
                             .shared_k = w.cross_k + i * layer_size,
                             .shared_v = w.cross_v + i * layer_size,
                             .tokens = tokens,
                             .heads = d.heads,
                             .head_dim = d.head_dim,
                             .stride = 2 * inner,
                             .capacity = capacity});
  }
}

// Runs a decoder-only model over all but the last token of each prompt, for its keys and values.
template <typename T, typename Stream>
void read_prompt(Stream& stream, const ModelSpec& spec, const ModelWeights& weights,
                 const Workspace<T>& w, int sentences, int tokens, int capacity) {
  const StackSpec& d = spec.decoder;
  const int inner = d.heads * d.head_dim;
  const size_t layer_size = size_t(d.heads) * capacity * d.head_dim;
  packed_pass(stream, d, weights.decoder, w.packed, w.prompt_ids, w.prompt_offsets, sentences,
              tokens, true, [&](int i) {
                store_shared<T>(stream, {.k = w.packed.qkv + inner,
                                         .v = w.packed.qkv + 2 * inner,
                                         .shared_k = w.prompt_k + i * layer_size,
                                         .shared_v = w.prompt_v + i * layer_size,
                                         .tokens = tokens,
                                         .heads = d.heads,
                                         .head_dim = d.head_dim,
                                         .stride = 3 * inner,
                                         .capacity = capacity});
              });
}

}  // namespace decoding
