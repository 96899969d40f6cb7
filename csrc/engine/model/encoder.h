// The packed pass: all tokens of all sentences at once, without padding. It is the encoder, and,
// causal, the prompt of a decoder-only model.
#pragma once

#include <algorithm>

#include "engine/model/blocks.h"
#include "engine/model/cache.h"
#include "engine/search/batch.h"
#include "kernels/attention/attention.h"
#include "kernels/rows/embed.h"

namespace decoding {

// The tokens of a packed pass.
struct PackedTokens {
  const int32_t* ids;      // [count]
  const int32_t* at;       // [count], positions
  const int32_t* offsets;  // [sentences + 1]
  int sentences, count;
  int longest;  // most tokens of a sentence
};

inline int longest_of(const int32_t* offsets, int sentences) {
  int longest = 0;
  for (int b = 0; b < sentences; ++b) longest = std::max(longest, offsets[b + 1] - offsets[b]);
  return longest;
}

inline PackedTokens source_tokens(const SourceInputs& in, const Batch& batch) {
  const int32_t* offsets = batch.source_offsets;
  return {in.ids,
          in.at,
          in.offsets,
          batch.sentences,
          offsets[batch.sentences],
          longest_of(offsets, batch.sentences)};
}

// All but the last token of each prompt.
inline PackedTokens prompt_tokens(const Inputs& in, const Batch& batch) {
  const int32_t* offsets = batch.prompt_offsets;
  return {in.prompt_ids,
          in.prompt_at,
          in.prompt_offsets,
          batch.sentences,
          offsets[batch.sentences] - batch.sentences,
          longest_of(offsets, batch.sentences) - 1};
}

template <typename T, typename Stream>
void embed_packed(Stream& stream, const StackSpec& spec, const StackWeights& weights,
                  const Activations<T>& a, const PackedTokens& tokens) {
  embed<T>(stream, {.ids = tokens.ids,
                    .at = tokens.at,
                    .tokens = weights.tokens,
                    .position_table = static_cast<const T*>(weights.positions),
                    .norm = weights.embed_norm,
                    .y = a.x,
                    .rows = tokens.count,
                    .hidden = spec.hidden,
                    .scale = spec.embed_scale});
}

template <typename T, typename Stream>
void packed_convolution(Stream& stream, const StackSpec& spec, const StackWeights& weights,
                        Norm& due, const Activations<T>& a, const PackedTokens& tokens, bool causal,
                        int i) {
  const LayerWeights& layer = weights.layers[i];
  const auto block = enter_block(spec, layer.self_norm, due, a);
  const auto taps = make_convolution(stream, spec, weights, i, block, a, tokens.count);
  packed_depthwise<T>(stream, {.x = a.qkv,
                               .taps = taps,
                               .offsets = tokens.offsets,
                               .y = a.attended,
                               .sentences = tokens.sentences,
                               .longest = tokens.longest,
                               .heads = spec.heads[i],
                               .head_dim = spec.head_dim,
                               .causal = causal});
  leave_self_attention(stream, spec, layer, block, a, tokens.count);
}

// Or a convolution in its place. after_qkv(i): called when a.qkv holds layer i's queries, keys and
// values.
template <typename T, typename Stream, typename AfterQkv>
void packed_self_attention(Stream& stream, const StackSpec& spec, const StackWeights& weights,
                           Norm& due, const Activations<T>& a, const PackedTokens& tokens,
                           bool causal, int i, AfterQkv&& after_qkv) {
  if (spec.convolution) {
    return packed_convolution(stream, spec, weights, due, a, tokens, causal, i);
  }
  const LayerWeights& layer = weights.layers[i];
  const auto block = enter_block(spec, layer.self_norm, due, a);
  first_product<T>(stream, layer.qkv, block, a, a.qkv, tokens.count);
  const Rotation rotation = rotation_of(spec, weights, layer, tokens.at);
  if (rotation.any()) {
    rotate<T>(stream, {.x = a.qkv,
                       .rotation = rotation,
                       .rows = tokens.count,
                       .heads = spec.heads[i],
                       .kv_heads = spec.kv_heads[i],
                       .head_dim = spec.head_dim,
                       .stride = spec.qkv(i)});
  }
  after_qkv(i);
  packed_attention(stream, PackedAttentionParams<T>{.q = a.qkv,
                                                    .k = a.qkv + spec.inner(i),
                                                    .v = a.qkv + spec.inner(i) + spec.kv_inner(i),
                                                    .offsets = tokens.offsets,
                                                    .key_offsets = tokens.offsets,
                                                    .y = a.attended,
                                                    .sentences = tokens.sentences,
                                                    .longest = tokens.longest,
                                                    .heads = spec.heads[i],
                                                    .kv_heads = spec.kv_heads[i],
                                                    .head_dim = spec.head_dim,
                                                    .stride = spec.qkv(i),
                                                    .key_stride = spec.qkv(i),
                                                    .head_stride = spec.head_dim,
                                                    .scale = spec.attention_scale[i],
                                                    .causal = causal,
                                                    .rules = score_rules(spec, weights, i)});
  leave_self_attention(stream, spec, layer, block, a, tokens.count);
}

// Fills a.x with the stack's output, up to the norm that is returned. after_qkv: as above.
template <typename T, typename Stream, typename AfterQkv>
Norm packed_pass(Stream& stream, const StackSpec& spec, const StackWeights& weights,
                 const Activations<T>& a, const PackedTokens& tokens, bool causal,
                 AfterQkv&& after_qkv) {
  embed_packed(stream, spec, weights, a, tokens);
  Norm due;
  for (int i = 0; i < spec.layers; ++i) {
    const LayerWeights& layer = weights.layers[i];
    packed_self_attention(stream, spec, weights, due, a, tokens, causal, i, after_qkv);
    feed_forward(stream, spec, layer, due, a, tokens.count);
  }
  return last_norm(stream, spec, weights, due, a, tokens.count);
}

// Runs the encoder, and stores the keys and values that every decoder layer attends to.
template <typename T, typename C, typename Stream>
void encode(Stream& stream, const ModelSpec& spec, const ModelWeights& weights,
            const Workspace<T>& w, const Cache<C>& cache, const PackedTokens& tokens,
            int capacity) {
  const StackSpec& d = spec.decoder;
  const Activations<T>& a = w.packed;
  const Norm norm =
      packed_pass(stream, *spec.encoder, *weights.encoder, a, tokens, false, [](int) {});
  if (norm.gamma != nullptr) normalize(stream, *spec.encoder, norm, a, tokens.count);
  for (int i = 0; i < d.layers; ++i) {
    const Linear& kv = weights.decoder.layers[i].cross_kv;
    const int64_t before = d.kv_before(i) * capacity;
    linear<T>(stream, {.x = a.x,
                       .weight = kv.weight,
                       .bias = kv.bias,
                       .y = w.packed_kv,
                       .scratch = a.scratch,
                       .rows = tokens.count});
    store_shared(stream, StoreSharedParams<T, C>{.k = w.packed_kv,
                                                 .v = w.packed_kv + d.kv_inner(i),
                                                 .shared_k = cache.cross_k + before,
                                                 .shared_v = cache.cross_v + before,
                                                 .tokens = tokens.count,
                                                 .heads = d.kv_heads[i],
                                                 .head_dim = d.head_dim,
                                                 .stride = 2 * d.kv_inner(i),
                                                 .capacity = capacity});
  }
}

// Runs a decoder-only model over all but the last token of each prompt, for its keys and values.
template <typename T, typename C, typename Stream>
void read_prompt(Stream& stream, const ModelSpec& spec, const ModelWeights& weights,
                 const Workspace<T>& w, const Cache<C>& cache, const PackedTokens& tokens,
                 int capacity) {
  const StackSpec& d = spec.decoder;
  const Norm norm = packed_pass(stream, d, weights.decoder, w.packed, tokens, true, [&](int i) {
    const int64_t before = d.kv_before(i) * capacity;
    store_shared(stream, StoreSharedParams<T, C>{.k = w.packed.qkv + d.inner(i),
                                                 .v = w.packed.qkv + d.inner(i) + d.kv_inner(i),
                                                 .shared_k = cache.prompt_k + before,
                                                 .shared_v = cache.prompt_v + before,
                                                 .tokens = tokens.count,
                                                 .heads = d.kv_heads[i],
                                                 .head_dim = d.head_dim,
                                                 .stride = d.qkv(i),
                                                 .capacity = capacity});
  });
  if (w.hidden == nullptr) return;
  layer_norm<T>(stream, {.x = w.packed.x,
                         .norm = norm,
                         .y = w.prompt_hidden,
                         .rows = tokens.count,
                         .cols = d.hidden});
}

}  // namespace decoding
