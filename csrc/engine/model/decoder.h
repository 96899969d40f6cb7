// One decode step of the live rows: from the token that each reads to its logits.
#pragma once

#include "engine/model/blocks.h"
#include "engine/model/cache.h"
#include "kernels/attention/attention.h"
#include "kernels/rows/embed.h"
#include "kernels/search/contrastive.h"
#include "kernels/search/guidance.h"

namespace decoding {

// The rows of a step: beam j of sentence live[i] is row i * beams + j. Its history lies in slot
// slot_live[i] * beams + j.
struct StepRows {
  const StepState* now;
  const int32_t* ids;        // [sentences * beams], the token that each row reads
  const int32_t* at;         // [sentences * beams], its position
  const int32_t* live;       // [sentences], sentence ids
  const int32_t* slot_live;  // [sentences], the same but where a prompt is read by first rows alone
  int sentences, beams;      // sentences: at least now->live_count
  int total() const { return sentences * beams; }
};

template <typename T, typename C, typename Stream>
void convolve(Stream& stream, const StackSpec& d, const StackWeights& weights, Norm& due,
              const Workspace<T>& w, const Cache<C>& cache, const Limits& limits,
              const StepRows& rows, int i) {
  const LayerWeights& layer = weights.layers[i];
  const Activations<T>& a = w.step;
  const auto block = enter_block(d, layer.self_norm, due, a);
  const auto taps = make_convolution(stream, d, weights, i, block, a, rows.total());
  const int ring = d.convolution->most_taps();
  decode_depthwise(stream, DecodeDepthwiseParams<T, C>{
                               .now = rows.now,
                               .x = a.qkv,
                               .taps = taps,
                               .inputs = cache.inputs + d.kv_before(i) * limits.rows() * ring,
                               .slots = w.slots,
                               .live = rows.slot_live,
                               .y = a.attended,
                               .sentences = rows.sentences,
                               .beams = rows.beams,
                               .heads = d.heads[i],
                               .head_dim = d.head_dim,
                               .ring = ring,
                               .total_slots = limits.rows(),
                               .history = w.history});
  leave_self_attention(stream, d, layer, block, a, rows.total());
}

// Or a convolution in its place.
template <typename T, typename C, typename Stream>
void self_attention(Stream& stream, const ModelSpec& spec, const StackWeights& weights, Norm& due,
                    const Workspace<T>& w, const Cache<C>& cache, const Limits& limits,
                    const StepRows& rows, int i) {
  const StackSpec& d = spec.decoder;
  if (d.convolution) return convolve(stream, d, weights, due, w, cache, limits, rows, i);
  const LayerWeights& layer = weights.layers[i];
  const Activations<T>& a = w.step;
  const auto block = enter_block(d, layer.self_norm, due, a);
  first_product<T>(stream, layer.qkv, block, a, a.qkv, rows.total());
  const int64_t before = d.kv_before(i);
  const int64_t self_before = before * limits.rows() * w.history;
  const int shared = spec.encoder ? 0 : limits.batch * (limits.prompt - 1);
  decode_attention(stream, DecodeAttentionParams<T, C>{
                               .now = rows.now,
                               .q = a.qkv,
                               .k = a.qkv + d.inner(i),
                               .v = a.qkv + d.inner(i) + d.kv_inner(i),
                               .shared_k = shared > 0 ? cache.prompt_k + before * shared : nullptr,
                               .shared_v = shared > 0 ? cache.prompt_v + before * shared : nullptr,
                               .shared_offsets = shared > 0 ? w.inputs.prompt_offsets : nullptr,
                               .self_k = cache.self_k + self_before,
                               .self_v = cache.self_v + self_before,
                               .slots = w.slots,
                               .live = rows.slot_live,
                               .y = a.attended,
                               .partial = w.partial,
                               .tickets = w.tickets,
                               .sentences = rows.sentences,
                               .beams = rows.beams,
                               .heads = d.heads[i],
                               .kv_heads = d.kv_heads[i],
                               .head_dim = d.head_dim,
                               .stride = d.qkv(i),
                               .shared_capacity = shared,
                               .target = w.history,
                               .total_slots = limits.rows(),
                               .scale = d.attention_scale[i],
                               .rules = score_rules(d, weights, i),
                               .rotation = rotation_of(d, weights, layer, rows.at)});
  leave_self_attention(stream, d, layer, block, a, rows.total());
}

template <typename T, typename C, typename Stream>
void cross_attention(Stream& stream, const ModelSpec& spec, const LayerWeights& layer, Norm& due,
                     const Workspace<T>& w, const Cache<C>& cache, const Limits& limits,
                     const StepRows& rows, int i) {
  const StackSpec& d = spec.decoder;
  const Activations<T>& a = w.step;
  const int capacity = limits.batch * limits.source;
  const auto block = enter_block(d, layer.cross_norm, due, a);
  first_product<T>(stream, layer.cross_q, block, a, a.qkv, rows.total());
  const int64_t before = d.kv_before(i) * capacity;
  if (w.attentions != nullptr && i == d.layers - 1) {
    attention_weights(stream,
                      AttentionWeightsParams<T, C>{.now = rows.now,
                                                   .q = a.qkv,
                                                   .shared_k = cache.cross_k + before,
                                                   .shared_offsets = w.inputs.source.offsets,
                                                   .live = rows.live,
                                                   .y = w.attentions,
                                                   .sentences = rows.sentences,
                                                   .beams = rows.beams,
                                                   .heads = d.heads[i],
                                                   .kv_heads = d.kv_heads[i],
                                                   .head_dim = d.head_dim,
                                                   .stride = d.inner(i),
                                                   .shared_capacity = capacity,
                                                   .total_slots = limits.rows(),
                                                   .longest = limits.source,
                                                   .scale = d.attention_scale[i]});
  }
  decode_attention(stream, DecodeAttentionParams<T, C>{.now = rows.now,
                                                       .q = a.qkv,
                                                       .shared_k = cache.cross_k + before,
                                                       .shared_v = cache.cross_v + before,
                                                       .shared_offsets = w.inputs.source.offsets,
                                                       .live = rows.live,
                                                       .y = a.attended,
                                                       .partial = w.partial,
                                                       .tickets = w.tickets,
                                                       .sentences = rows.sentences,
                                                       .beams = rows.beams,
                                                       .heads = d.heads[i],
                                                       .kv_heads = d.kv_heads[i],
                                                       .head_dim = d.head_dim,
                                                       .stride = d.inner(i),
                                                       .shared_capacity = capacity,
                                                       .scale = d.attention_scale[i]});
  last_product<T>(stream, layer.cross_out, layer.cross_post, block.residual, a, a.attended,
                  rows.total());
}

// Leaves the last layer's output in w.step.x, up to the norm that is returned.
template <typename T, typename C, typename Stream>
Norm decoder_layers(Stream& stream, const ModelSpec& spec, const ModelWeights& weights,
                    const Workspace<T>& w, const Cache<C>& cache, const Limits& limits,
                    const StepRows& rows) {
  const StackSpec& d = spec.decoder;
  embed<T>(stream, {.ids = rows.ids,
                    .at = rows.at,
                    .tokens = weights.decoder.tokens,
                    .position_table = static_cast<const T*>(weights.decoder.positions),
                    .norm = weights.decoder.embed_norm,
                    .y = w.step.x,
                    .rows = rows.total(),
                    .hidden = d.hidden,
                    .scale = d.embed_scale});
  Norm due;
  for (int i = 0; i < d.layers; ++i) {
    const LayerWeights& layer = weights.decoder.layers[i];
    self_attention(stream, spec, weights.decoder, due, w, cache, limits, rows, i);
    if (spec.encoder) cross_attention(stream, spec, layer, due, w, cache, limits, rows, i);
    feed_forward(stream, d, layer, due, w.step, rows.total());
  }
  return due;
}

// Keeps the hidden states of a step's rows, which lie in w.step.normed, for contrastive search.
template <typename T, typename Stream>
void keep_hidden(Stream& stream, const ModelSpec& spec, const Workspace<T>& w, const Limits& limits,
                 const StepRows& rows) {
  const bool packed = !spec.encoder && limits.prompt > 1;
  contrast<T>(stream, {.x = w.step.normed,
                       .hidden = w.hidden,
                       .prompt = packed ? w.prompt_hidden : nullptr,
                       .prompt_offsets = packed ? w.inputs.prompt_offsets : nullptr,
                       .slots = w.slots,
                       .live = rows.slot_live,
                       .now = rows.now,
                       .likeness = w.likeness,
                       .sentences = rows.sentences,
                       .beams = rows.beams,
                       .size = spec.decoder.hidden,
                       .total_slots = limits.rows(),
                       .history = w.history});
}

// due: as decoder_layers left it.
template <typename T, typename Stream>
void output_logits(Stream& stream, const ModelSpec& spec, const ModelWeights& weights, Norm due,
                   const Workspace<T>& w, int rows) {
  const Activations<T>& a = w.step;
  linear<T>(stream, {.x = a.x,
                     .norm = last_norm(stream, spec.decoder, weights.decoder, due, a, rows),
                     .normed = a.normed,
                     .weight = weights.output.weight,
                     .bias = weights.output.bias,
                     .y = w.logits,
                     .scratch = a.scratch,
                     .rows = rows,
                     .stride = w.logits_stride});
  cap_logits(stream, spec, w.logits, rows, spec.decoder.vocab, w.logits_stride);
}

// The rows of a search's step, their shadows behind them where there is guidance. sentences: at
// least the live ones.
template <typename T, typename Stream>
StepRows step_rows(Stream& stream, const Workspace<T>& w, const Limits& limits, int sentences,
                   int beams, bool guided) {
  if (!guided) {
    return {.now = w.inputs.state,
            .ids = w.inputs.ids,
            .at = w.inputs.at,
            .live = w.inputs.live,
            .slot_live = w.inputs.live,
            .sentences = sentences,
            .beams = beams};
  }
  shadow_rows(stream, {.now = w.inputs.state,
                       .live = w.inputs.live,
                       .ids = w.inputs.ids,
                       .shadow = w.inputs.shadow,
                       .shadow_ids = w.inputs.shadow_ids,
                       .first = w.inputs.first,
                       .slots = w.slots,
                       .all_now = w.all_now,
                       .all_live = w.all_live,
                       .all_ids = w.all_ids,
                       .all_at = w.all_at,
                       .sentences = sentences,
                       .beams = beams,
                       .total_slots = limits.rows(),
                       .history = w.history});
  return {.now = w.all_now,
          .ids = w.all_ids,
          .at = w.all_at,
          .live = w.all_live,
          .slot_live = w.all_live,
          .sentences = 2 * sentences,
          .beams = beams};
}

// An encoder-decoder's prompt but for its last token, position by position, read by the first row
// of each sentence for all of them. prefix: how many positions.
template <typename T, typename C, typename Stream>
void read_prefix(Stream& stream, const ModelSpec& spec, const ModelWeights& weights,
                 const Workspace<T>& w, const Cache<C>& cache, const Limits& limits, int sentences,
                 int prefix) {
  for (int i = 0; i < prefix; ++i) {
    const StepRows rows{.now = w.inputs.prompt_steps + i,
                        .ids = w.inputs.prompt_ids + i * sentences,
                        .at = w.inputs.prompt_at + i * sentences,
                        .live = w.inputs.live,
                        .slot_live = w.inputs.first_rows,
                        .sentences = sentences,
                        .beams = 1};
    const Norm due = decoder_layers(stream, spec, weights, w, cache, limits, rows);
    if (w.hidden == nullptr) continue;
    const Activations<T>& a = w.step;
    layer_norm<T>(stream,
                  {.x = a.x,
                   .norm = last_norm(stream, spec.decoder, weights.decoder, due, a, sentences),
                   .y = a.normed,
                   .rows = sentences,
                   .cols = spec.decoder.hidden});
    keep_hidden(stream, spec, w, limits, rows);
  }
}

}  // namespace decoding
