// One decode step of the live rows: from the token that each reads to its logits.
#pragma once

#include "engine/blocks.h"
#include "kernels/attention.h"
#include "kernels/embed.h"

namespace decoding {

// The rows of a step: beam j of sentence live[i] is row i * beams + j. Its history lies in slot
// slot_live[i] * beams + j.
struct StepRows {
  const int32_t* live;       // [count], sentence ids
  const int32_t* slot_live;  // [count], the same but where a prompt is read by first rows alone
  int count, beams;
  int position;  // of this step in every row's history
  int total() const { return count * beams; }
};

template <typename T, typename Stream>
void self_attention(Stream& stream, const ModelSpec& spec, const LayerWeights& layer,
                    const Workspace<T>& w, const Limits& limits, const StepRows& rows, int i) {
  const StackSpec& d = spec.decoder;
  const Activations<T>& a = w.step;
  const int inner = d.heads * d.head_dim;
  const T* x = block_input(stream, d, layer.self_norm, a, rows.total());
  linear<T>(stream, {.x = x,
                     .weight = layer.qkv.weight,
                     .bias = layer.qkv.bias,
                     .y = a.qkv,
                     .rows = rows.total()});
  const size_t self_size = size_t(limits.rows()) * d.heads * w.history * d.head_dim;
  const int shared = spec.encoder ? 0 : limits.batch * (limits.prompt - 1);
  const size_t shared_size = size_t(d.heads) * shared * d.head_dim;
  decode_attention<T>(stream, {.q = a.qkv,
                               .k = a.qkv + inner,
                               .v = a.qkv + 2 * inner,
                               .shared_k = shared > 0 ? w.prompt_k + i * shared_size : nullptr,
                               .shared_v = shared > 0 ? w.prompt_v + i * shared_size : nullptr,
                               .shared_offsets = shared > 0 ? w.prompt_offsets : nullptr,
                               .self_k = w.self_k + i * self_size,
                               .self_v = w.self_v + i * self_size,
                               .slots = w.slots,
                               .live = rows.slot_live,
                               .y = a.h,
                               .live_count = rows.count,
                               .beams = rows.beams,
                               .heads = d.heads,
                               .head_dim = d.head_dim,
                               .stride = 3 * inner,
                               .shared_capacity = shared,
                               .target = w.history,
                               .position = rows.position,
                               .scale = d.attention_scale[i]});
  block_output<T>(stream, d, layer.self_norm, layer.self_out, a.h, a, rows.total());
}

template <typename T, typename Stream>
void cross_attention(Stream& stream, const ModelSpec& spec, const LayerWeights& layer,
                     const Workspace<T>& w, const Limits& limits, const StepRows& rows, int i) {
  const StackSpec& d = spec.decoder;
  const Activations<T>& a = w.step;
  const int inner = d.heads * d.head_dim, capacity = limits.batch * limits.source;
  const T* x = block_input(stream, d, layer.cross_norm, a, rows.total());
  linear<T>(stream, {.x = x,
                     .weight = layer.cross_q.weight,
                     .bias = layer.cross_q.bias,
                     .y = a.qkv,
                     .rows = rows.total()});
  const size_t layer_size = size_t(d.heads) * capacity * d.head_dim;
  decode_attention<T>(stream, {.q = a.qkv,
                               .shared_k = w.cross_k + i * layer_size,
                               .shared_v = w.cross_v + i * layer_size,
                               .shared_offsets = w.source_offsets,
                               .live = rows.live,
                               .y = a.h,
                               .live_count = rows.count,
                               .beams = rows.beams,
                               .heads = d.heads,
                               .head_dim = d.head_dim,
                               .stride = inner,
                               .shared_capacity = capacity,
                               .scale = d.attention_scale[i]});
  block_output<T>(stream, d, layer.cross_norm, layer.cross_out, a.h, a, rows.total());
}

// Leaves the last layer's output in w.step.x, before the final norm.
template <typename T, typename Stream>
void decoder_layers(Stream& stream, const ModelSpec& spec, const ModelWeights& weights,
                    const Workspace<T>& w, const Limits& limits, const StepRows& rows) {
  const StackSpec& d = spec.decoder;
  embed<T>(stream, {.ids = w.ids,
                    .at = w.step.at,
                    .token_table = weights.decoder.tokens,
                    .position_table = weights.decoder.positions,
                    .gamma = weights.decoder.embed_norm.gamma,
                    .beta = weights.decoder.embed_norm.beta,
                    .y = w.step.x,
                    .rows = rows.total(),
                    .hidden = d.hidden,
                    .scale = d.embed_scale,
                    .eps = d.eps});
  for (int i = 0; i < d.layers; ++i) {
    const LayerWeights& layer = weights.decoder.layers[i];
    self_attention(stream, spec, layer, w, limits, rows, i);
    if (spec.encoder) cross_attention(stream, spec, layer, w, limits, rows, i);
    feed_forward(stream, d, layer, w.step, rows.total());
  }
}

template <typename T, typename Stream>
void output_logits(Stream& stream, const ModelSpec& spec, const ModelWeights& weights,
                   const Workspace<T>& w, int rows) {
  const T* x = w.step.x;
  if (spec.decoder.final_norm) {
    normalize<T>(stream, spec.decoder, weights.decoder.norm, x, w.step.h, rows);
    x = w.step.h;
  }
  linear<T>(stream, {.x = x,
                     .weight = weights.output.weight,
                     .bias = weights.output.bias,
                     .y = w.logits,
                     .rows = rows});
}

}  // namespace decoding
