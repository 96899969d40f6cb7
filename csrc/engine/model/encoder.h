// The packed pass: all tokens of all sentences at once, without padding. It is the encoder, and,
// causal, the prompt of a decoder-only model.
#pragma once

#include <algorithm>
#include <type_traits>

#include "engine/model/pass.h"
#include "engine/search/batch.h"
#include "kernels/attention/packed.h"
#include "kernels/rows/embed.h"

namespace decoding {

// The tokens of a packed pass.
struct PackedTokens {
  const int32_t* ids;        // [count]
  const int32_t* positions;  // [count]
  const int32_t* offsets;    // [sentences + 1]
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
          in.positions,
          in.offsets,
          batch.sentences,
          offsets[batch.sentences],
          longest_of(offsets, batch.sentences)};
}

// All but the last token of each prompt.
inline PackedTokens prompt_tokens(const Inputs& in, const Batch& batch) {
  const int32_t* offsets = batch.prompt_offsets;
  return {in.prompt_ids,
          in.prompt_positions,
          in.prompt_offsets,
          batch.sentences,
          offsets[batch.sentences] - batch.sentences,
          longest_of(offsets, batch.sentences) - 1};
}

template <typename Stream, typename T>
void packed_convolution(StackPass<Stream, T>& p, const PackedTokens& tokens, bool causal, int i) {
  const auto block = enter_block(p, p.layer(i).self_norm);
  make_convolution(p, i, block);
  packed_depthwise<T>(p.stream, {.x = p.a.qkv,
                                 .weights = convolution_weights(p, i),
                                 .offsets = tokens.offsets,
                                 .y = p.a.attended,
                                 .sentences = tokens.sentences,
                                 .longest = tokens.longest,
                                 .heads = p.spec.heads[i],
                                 .head_dim = p.spec.head_dim,
                                 .causal = causal});
  leave_self_attention(p, i, block);
}

// Or a convolution in its place. keys_of(i, keys): what layer i attends to, when it has made the
// keys and values of the tokens.
template <typename Stream, typename T, typename KeysOf>
void packed_self_attention(StackPass<Stream, T>& p, const PackedTokens& tokens, bool causal, int i,
                           KeysOf&& keys_of) {
  const StackSpec& spec = p.spec;
  if (spec.convolution) return packed_convolution(p, tokens, causal, i);
  const auto block = enter_block(p, p.layer(i).self_norm);
  first_product(p, p.layer(i).qkv, block, p.a.qkv);
  if (const Rotary rotary = rotary_of(p, i, tokens.positions); rotary.any()) {
    apply_rotary<T>(p.stream, {.x = p.a.qkv,
                               .rotary = rotary,
                               .rows = p.rows,
                               .heads = spec.heads[i],
                               .kv_heads = spec.kv_heads[i],
                               .head_dim = spec.head_dim,
                               .stride = spec.qkv(i)});
  }
  const T* k = p.a.qkv + spec.inner(i);
  const auto keys = keys_of(i, PackedKeys<T>{k, k + spec.kv_inner(i)});
  packed_attention(p.stream, PackedAttentionParams{.q = p.a.qkv,
                                                   .keys = keys,
                                                   .offsets = tokens.offsets,
                                                   .y = p.a.attended,
                                                   .sentences = tokens.sentences,
                                                   .longest = tokens.longest,
                                                   .heads = spec.heads[i],
                                                   .kv_heads = spec.kv_heads[i],
                                                   .head_dim = spec.head_dim,
                                                   .stride = spec.qkv(i),
                                                   .scale = spec.attention_scale[i],
                                                   .causal = causal,
                                                   .bias = attention_bias(spec, p.weights, i)});
  leave_self_attention(p, i, block);
}

// Looks at the tensors of a packed pass. places: of the tokens, see overflow.h.
template <typename Stream, typename T>
struct PackedLook {
  Stream& stream;
  OverflowView view;
  bool is_encoder;
  const int32_t* places;  // [tokens]; null: each token has its own in view.sentences
  int tokens;

  void operator()(int layer, Site site, const T* x, int cols) const {
    look<T>(stream, view, view.number(is_encoder, layer, site),
            {.x = x,
             .first = places != nullptr ? view.cells : view.sentences,
             .places = places,
             .rows = tokens,
             .cols = cols,
             .renews = site == Site::embeddings});
  }
};

// Fills a.x with the stack's output, up to the norm that is returned. keys_of: as above; look_at:
// as of blocks.h.
template <typename Stream, typename T, typename KeysOf, typename Look>
Norm packed_pass(StackPass<Stream, T> p, const PackedTokens& tokens, bool causal, KeysOf&& keys_of,
                 Look&& look_at) {
  embed_tokens(p, tokens.ids, tokens.positions);
  look_at(0, Site::embeddings, p.a.x, p.spec.hidden);
  for (int i = 0; i < p.spec.layers; ++i) {
    packed_self_attention(p, tokens, causal, i, keys_of);
    look_at_self_attention(p, i, look_at);
    feed_forward(p, i);
    look_at_feed_forward(p, i, look_at);
  }
  return last_norm(p);
}

// The tokens attend to each other.
inline constexpr auto own_keys = [](int, const auto& keys) { return keys; };

// Runs an encoder.
template <typename Stream, typename T, typename Look>
Norm encoder_pass(const StackPass<Stream, T>& p, const PackedTokens& tokens, Look&& look_at) {
  return packed_pass(p, tokens, false, own_keys, look_at);
}

// Layer i's keys and values of `tokens` rows, `stride` elements apart, which their sentences share.
template <typename Stream, typename T, typename C>
void store_keys(const Pass<Stream, T, C>& p, const T* k, int tokens, int stride, int i) {
  const StackSpec& d = p.spec.decoder;
  store_shared(p.stream, StoreSharedParams<T, C>{.k = k,
                                                 .v = k + d.kv_inner(i),
                                                 .pool = p.cache.pool(d, i),
                                                 .cells = p.workspace.inputs.shared_cells,
                                                 .tokens = tokens,
                                                 .heads = d.kv_heads[i],
                                                 .head_dim = d.head_dim,
                                                 .stride = stride});
}

// Runs the encoder, and stores the keys and values that every decoder layer attends to.
template <typename Stream, typename T, typename C>
void encode(const Pass<Stream, T, C>& p, const PackedTokens& tokens) {
  const Workspace<T>& w = p.workspace;
  const StackPass<Stream, T> encoder{p.stream, *p.spec.encoder, *p.weights.encoder, w.packed,
                                     tokens.count};
  const PackedLook<Stream, T> look_at{p.stream, w.overflow, true, w.inputs.shared_cells,
                                      tokens.count};
  const Norm norm = encoder_pass(encoder, tokens, look_at);
  if (norm.gamma != nullptr) normalize(encoder, norm);
  look_at(p.spec.encoder->layers - 1, Site::output, w.packed.x, p.spec.encoder->hidden);
  PackedLook<Stream, T> look_at_keys = look_at;
  look_at_keys.is_encoder = false;
  for (int i = 0; i < p.spec.decoder.layers; ++i) {
    const Linear& kv = p.weights.decoder.layers[i].cross_kv;
    linear<T>(p.stream, {.x = w.packed.x,
                         .weight = kv.weight,
                         .bias = kv.bias,
                         .y = w.packed_kv,
                         .scratch = w.packed.scratch,
                         .rows = tokens.count});
    look_at_keys(i, Site::cross_keys, w.packed_kv, kv.weight.outputs);
    store_keys(p, w.packed_kv, tokens.count, 2 * p.spec.decoder.kv_inner(i), i);
  }
}

// The keys and values of prompts or of parts of them go to pages, layer by layer. first_queries:
// [sentences], positions at which the parts begin, in texts whose pages have what is before them;
// null: they are whole.
template <typename Stream, typename T, typename C>
Norm prompt_pass(const Pass<Stream, T, C>& p, const PackedTokens& tokens,
                 const int32_t* first_queries) {
  const Workspace<T>& w = p.workspace;
  const StackSpec& d = p.spec.decoder;
  const auto pass = p.decoder(w.packed, tokens.count);
  const PackedLook<Stream, T> look_at{p.stream, w.overflow, false, w.inputs.shared_cells,
                                      tokens.count};
  const auto store = [&](int i, const PackedKeys<T>& keys) {
    store_keys(p, keys.k, tokens.count, d.qkv(i), i);
    return keys;
  };
  // What is rounded in the pages is read as it is there, so that parts do not matter.
  if (std::is_same_v<T, C> && first_queries == nullptr)
    return packed_pass(pass, tokens, true, store, look_at);
  const auto paged = [&](int i, const PackedKeys<T>& keys) {
    store(i, keys);
    return PagedKeys<C>{p.cache.pool(d, i), p.shared_pages(), w.inputs.shared_lengths,
                        first_queries};
  };
  return packed_pass(pass, tokens, true, paged, look_at);
}

// Runs a decoder-only model over all but the last token of each prompt, for its keys and values.
template <typename Stream, typename T, typename C>
void read_prompt(const Pass<Stream, T, C>& p, const PackedTokens& tokens) {
  const Workspace<T>& w = p.workspace;
  const Norm norm = prompt_pass(p, tokens, nullptr);
  if (w.hidden == nullptr) return;
  layer_norm<T>(p.stream, {.x = w.packed.x,
                           .norm = norm,
                           .y = w.prompt_hidden,
                           .rows = tokens.count,
                           .cols = p.spec.decoder.hidden});
}

}  // namespace decoding
