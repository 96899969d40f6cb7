// Teacher forcing: the decoder reads given tokens, all at once on packed rows, and its prediction
// after each is compared with a label, or its attention to the source is kept.
#pragma once

#include <algorithm>

#include "engine/model/encoder.h"
#include "engine/model/labelled.h"
#include "kernels/attention/decode.h"
#include "kernels/rows/logprobs.h"

namespace decoding {

inline PackedTokens forced_tokens(const Inputs& in, const Labelled& given) {
  return {in.forced_ids,   in.forced_positions, in.forced_offsets,
          given.sentences, given.tokens(),      longest_of(given.offsets, given.sentences)};
}

// Keeps how much each token, whose query is in a.qkv, attends to the positions of its source.
template <typename Stream, typename T, typename C>
void keep_attention(const Pass<Stream, T, C>& p, const StackPass<Stream, T>& stack,
                    const PackedTokens& tokens, int i) {
  const StackSpec& d = stack.spec;
  const Workspace<T>& w = p.workspace;
  attention_weights(p.stream,
                    AttentionWeightsParams<T, C>{.state = w.inputs.state,
                                                 .q = stack.a.qkv,
                                                 .pool = p.cache.pool(d, i),
                                                 .shared_pages = p.shared_pages(),
                                                 .shared_lengths = w.inputs.shared_lengths,
                                                 .active = w.inputs.forced_active,
                                                 .y = w.attentions,
                                                 .sentences = tokens.count,
                                                 .beams = 1,
                                                 .heads = d.heads[i],
                                                 .kv_heads = d.kv_heads[i],
                                                 .head_dim = d.head_dim,
                                                 .stride = d.inner(i),
                                                 .total_rows = p.limits.rows(),
                                                 .longest = p.limits.source,
                                                 .scale = d.attention_scale[i]});
}

// Every token attends to its sentence's source.
template <typename Stream, typename T, typename C>
void packed_cross_attention(const Pass<Stream, T, C>& p, StackPass<Stream, T>& stack,
                            const PackedTokens& tokens, int i) {
  const StackSpec& d = stack.spec;
  const LayerWeights& layer = stack.layer(i);
  const PagedKeys<C> source{p.cache.pool(d, i), p.shared_pages(),
                            p.workspace.inputs.shared_lengths};
  const auto block = enter_block(stack, layer.cross_norm);
  first_product(stack, layer.cross_q, block, stack.a.qkv);
  if (p.workspace.inputs.forced_active != nullptr && i == d.layers - 1) {
    keep_attention(p, stack, tokens, i);
  }
  packed_attention(p.stream, PackedAttentionParams<T, PagedKeys<C>>{.q = stack.a.qkv,
                                                                    .keys = source,
                                                                    .offsets = tokens.offsets,
                                                                    .y = stack.a.attended,
                                                                    .sentences = tokens.sentences,
                                                                    .longest = tokens.longest,
                                                                    .heads = d.heads[i],
                                                                    .kv_heads = d.kv_heads[i],
                                                                    .head_dim = d.head_dim,
                                                                    .stride = d.inner(i),
                                                                    .scale = d.attention_scale[i],
                                                                    .causal = false});
  last_product(stack, layer.cross_out, layer.cross_post, block.residual, stack.a.attended);
}

// Leaves the decoder's output in w.forced.x, up to the norm that is returned.
template <typename Stream, typename T, typename C>
Norm forced_pass(const Pass<Stream, T, C>& p, const PackedTokens& tokens) {
  auto stack = p.decoder(p.workspace.forced, tokens.count);
  const PackedLook<Stream, T> look_at{p.stream, p.workspace.overflow, false, nullptr, tokens.count};
  embed_tokens(stack, tokens.ids, tokens.positions);
  look_at(0, Site::embeddings, stack.a.x, stack.spec.hidden);
  for (int i = 0; i < p.spec.decoder.layers; ++i) {
    packed_self_attention(stack, tokens, true, i, own_keys);
    look_at_self_attention(stack, i, look_at);
    if (p.spec.encoder) {
      packed_cross_attention(p, stack, tokens, i);
      look_at_cross_attention(stack, i, look_at);
    }
    feed_forward(stack, i);
    look_at_feed_forward(stack, i, look_at);
  }
  return last_norm(stack);
}

// Fills w.label_scores. norm: as forced_pass returns it. The logits of all tokens would be large:
// they are made in chunks.
template <typename Stream, typename T, typename C>
void score_labels(const Pass<Stream, T, C>& p, const PackedTokens& tokens, const Norm& norm) {
  const StackSpec& d = p.spec.decoder;
  const Workspace<T>& w = p.workspace;
  for (int begin = 0; begin < tokens.count; begin += kForcedRows) {
    const int rows = std::min(kForcedRows, tokens.count - begin);
    const T* x = w.forced.x + int64_t{begin} * d.hidden;
    project_output(p, w.forced, x, norm, w.forced_logits, rows);
    label_logprobs<T>(p.stream, {.logits = w.forced_logits,
                                 .labels = w.inputs.labels + begin,
                                 .y = w.label_scores + begin,
                                 .rows = rows,
                                 .vocab = d.vocab,
                                 .stride = w.logits_stride});
  }
}

// The sources have been encoded.
template <typename Stream, typename T, typename C>
void read_labelled(const Pass<Stream, T, C>& p, const Labelled& labelled) {
  const PackedTokens tokens = forced_tokens(p.workspace.inputs, labelled);
  const Norm norm = forced_pass(p, tokens);
  if (labelled.labels != nullptr) score_labels(p, tokens, norm);
}

}  // namespace decoding
