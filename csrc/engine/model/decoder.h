// One decode step of the active rows: from the token that each reads to its logits.
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "core/check.h"
#include "engine/model/pass.h"
#include "kernels/attention/decode.h"
#include "kernels/rows/embed.h"
#include "kernels/search/contrastive.h"
#include "kernels/search/guidance.h"

namespace decoding {

// The rows of a step: row i * beams + j is beam j of sentence active[i], and its history is that of
// the cache row active[i].id * slots + j.
struct StepRows {
  const StepState* state;
  const int32_t* ids;            // [sentences * beams], the token that each row reads
  const int32_t* positions;      // [sentences * beams], of the token
  const ActiveSentence* active;  // [sentences]
  int sentences, beams, slots;   // sentences: at least state->active_count; slots: beams, but where
                                 // the first row of each sentence reads a prompt for all
  int64_t first = 0;             // row of the pass
  int64_t first_input = 0;       // row of Cache::inputs

  int total() const { return sentences * beams; }
};

// Rows of a step that one search has, and a pass with that search's memory. Those of the next part
// follow, at most kMostParts in all.
template <typename Stream, typename T, typename C>
struct StepPart {
  Pass<Stream, T, C> pass;
  StepRows rows;
};
template <typename Stream, typename T, typename C>
using StepParts = std::span<const StepPart<Stream, T, C>>;

template <typename Stream, typename T, typename C>
void decode_convolution(const StepPart<Stream, T, C>& part, const StackPass<Stream, T>& stack,
                        int i) {
  const auto& [p, rows] = part;
  const StackSpec& d = p.spec.decoder;
  const Workspace<T>& w = p.workspace;
  decode_depthwise(p.stream,
                   DecodeDepthwiseParams<T, C>{.state = rows.state,
                                               .x = w.step.qkv + rows.first * d.inner(i),
                                               .weights = convolution_weights(stack, i, rows.first),
                                               .inputs = p.cache.inputs_of(d, i, rows.first_input),
                                               .cache_indirection = w.cache_indirection,
                                               .active = rows.active,
                                               .y = w.step.attended + rows.first * d.inner(i),
                                               .sentences = rows.sentences,
                                               .beams = rows.beams,
                                               .heads = d.heads[i],
                                               .head_dim = d.head_dim,
                                               .ring = d.convolution->widest_kernel(),
                                               .slots = rows.slots,
                                               .total_rows = p.limits.rows(),
                                               .history = w.history});
}

// Attention of layer i to nothing yet: the queries are in a.qkv, rows `stride` apart.
template <typename Stream, typename T, typename C>
DecodeAttentionParams<T, C> attention_params(const Pass<Stream, T, C>& p, const StepRows& rows,
                                             int i, int stride) {
  const StackSpec& d = p.spec.decoder;
  const Workspace<T>& w = p.workspace;
  return {.state = rows.state,
          .q = w.step.qkv + rows.first * stride,
          .pool = p.cache.pool(d, i),
          .active = rows.active,
          .y = w.step.attended + rows.first * d.inner(i),
          .partial = w.partial,
          .split_counters = w.split_counters,
          .sentences = rows.sentences,
          .beams = rows.beams,
          .heads = d.heads[i],
          .kv_heads = d.kv_heads[i],
          .head_dim = d.head_dim,
          .stride = stride,
          .slots = rows.slots,
          .scale = d.attention_scale[i]};
}

// make(part): its attention.
template <typename Stream, typename T, typename C, typename Make>
void attend(const StepParts<Stream, T, C>& parts, Make&& make) {
  CHECK(parts.size() <= kMostParts, "a step has ", parts.size(), " parts, at most ", kMostParts);
  std::array<DecodeAttentionParams<T, C>, kMostParts> attention;
  std::ranges::transform(parts, attention.begin(), make);
  decode_attention<T>(parts.front().pass.stream,
                      std::span<const DecodeAttentionParams<T, C>>(attention).first(parts.size()));
}

template <typename Stream, typename T, typename C>
DecodeAttentionParams<T, C> history_params(const StepPart<Stream, T, C>& part, int i) {
  const auto& [p, rows] = part;
  const StackSpec& d = p.spec.decoder;
  const Workspace<T>& w = p.workspace;
  auto attention = attention_params(p, rows, i, d.qkv(i));
  attention.k = attention.q + d.inner(i);
  attention.v = attention.k + d.kv_inner(i);
  if (p.shares_prompts()) {
    attention.shared_pages = p.shared_pages();
    attention.shared_lengths = w.inputs.shared_lengths;
  }
  attention.self_pages = {w.inputs.self_pages, self_pages_of(p.spec, p.limits)};
  attention.cache_indirection = w.cache_indirection;
  attention.target = w.history;
  attention.total_rows = p.limits.rows();
  attention.bias = attention_bias(d, p.weights.decoder, i);
  attention.rotary = rotary_of(p.decoder(w.step, rows.total()), i, rows.positions);
  return attention;
}

// Or a convolution in its place.
template <typename Stream, typename T, typename C>
void self_attention(const StepParts<Stream, T, C>& parts, StackPass<Stream, T>& stack, int i) {
  const auto block = enter_block(stack, stack.layer(i).self_norm);
  if (stack.spec.convolution) {
    make_convolution(stack, i, block);
    if constexpr (!kIsFloat8<C>) {  // which sessions refuse
      for (const auto& part : parts) decode_convolution(part, stack, i);
    }
  } else {
    first_product(stack, stack.layer(i).qkv, block, stack.a.qkv);
    attend(parts, [&](const auto& part) { return history_params(part, i); });
  }
  leave_self_attention(stack, i, block);
}

template <typename Stream, typename T, typename C>
DecodeAttentionParams<T, C> source_params(const StepPart<Stream, T, C>& part, int i) {
  const auto& [p, rows] = part;
  const StackSpec& d = p.spec.decoder;
  auto attention = attention_params(p, rows, i, d.inner(i));
  attention.shared_pages = p.shared_pages();
  attention.shared_lengths = p.workspace.inputs.shared_lengths;
  return attention;
}

// Keeps how much the rows attend to each position of their sources, as layer i does.
template <typename Stream, typename T, typename C>
void keep_attention(const StepPart<Stream, T, C>& part, int i) {
  const auto& p = part.pass;
  if (p.workspace.attentions == nullptr) return;
  const auto attention = source_params(part, i);
  attention_weights(p.stream,
                    AttentionWeightsParams<T, C>{.state = attention.state,
                                                 .q = attention.q,
                                                 .pool = attention.pool,
                                                 .shared_pages = attention.shared_pages,
                                                 .shared_lengths = attention.shared_lengths,
                                                 .active = attention.active,
                                                 .y = p.workspace.attentions,
                                                 .sentences = attention.sentences,
                                                 .beams = attention.beams,
                                                 .heads = attention.heads,
                                                 .kv_heads = attention.kv_heads,
                                                 .head_dim = attention.head_dim,
                                                 .stride = attention.stride,
                                                 .total_rows = p.limits.rows(),
                                                 .longest = p.limits.source,
                                                 .scale = attention.scale});
}

template <typename Stream, typename T, typename C>
void cross_attention(const StepParts<Stream, T, C>& parts, StackPass<Stream, T>& stack, int i) {
  const LayerWeights& layer = stack.layer(i);
  const auto block = enter_block(stack, layer.cross_norm);
  first_product(stack, layer.cross_q, block, stack.a.qkv);
  attend(parts, [&](const auto& part) { return source_params(part, i); });
  if (i == stack.spec.layers - 1) {
    for (const auto& part : parts) keep_attention(part, i);
  }
  last_product(stack, layer.cross_out, layer.cross_post, block.residual, stack.a.attended);
}

// Looks at a tensor of all rows, which x begins.
template <typename Stream, typename T, typename C>
void look(const StepParts<Stream, T, C>& parts, int layer, Site site, const T* x, int cols) {
  for (const auto& [p, rows] : parts) {
    const OverflowView& view = p.workspace.overflow;
    look<T>(parts.front().pass.stream, view, view.number(false, layer, site),
            {.x = x + rows.first * cols,
             .first = view.sentences,
             .active = rows.active,
             .state = rows.state,
             .rows = rows.total(),
             .cols = cols,
             .beams = rows.beams});
  }
}

// Leaves the last layer's output in w.step.x of the first part, up to the norm that is returned.
template <typename Stream, typename T, typename C>
Norm decoder_layers(const StepParts<Stream, T, C>& parts) {
  const auto& [p, first] = parts.front();
  int rows = 0;
  for (const auto& part : parts) rows += part.rows.total();
  auto stack = p.decoder(p.workspace.step, rows);
  const auto look_at = [&](auto... tensor) { look(parts, tensor...); };
  embed_tokens(stack, first.ids, first.positions);
  look_at(0, Site::embeddings, stack.a.x, stack.spec.hidden);
  for (int i = 0; i < p.spec.decoder.layers; ++i) {
    self_attention(parts, stack, i);
    look_at_self_attention(stack, i, look_at);
    if (p.spec.encoder) {
      cross_attention(parts, stack, i);
      look_at_cross_attention(stack, i, look_at);
    }
    feed_forward(stack, i);
    look_at_feed_forward(stack, i, look_at);
  }
  return last_norm(stack);
}

template <typename Stream, typename T, typename C>
Norm decoder_layers(const Pass<Stream, T, C>& p, const StepRows& rows) {
  const StepPart<Stream, T, C> part{p, rows};
  return decoder_layers(StepParts<Stream, T, C>(&part, 1));
}

// Keeps the hidden states of a step's rows, which are in w.step.normed, for contrastive search.
template <typename Stream, typename T, typename C>
void keep_hidden(const Pass<Stream, T, C>& p, const StepRows& rows) {
  const Workspace<T>& w = p.workspace;
  const bool packed = p.shares_prompts();
  contrast<T>(p.stream, {.x = w.step.normed,
                         .hidden = w.hidden,
                         .prompt = packed ? w.prompt_hidden : nullptr,
                         .prompt_offsets = packed ? w.inputs.prompt_offsets : nullptr,
                         .cache_indirection = w.cache_indirection,
                         .active = rows.active,
                         .state = rows.state,
                         .similarity = w.similarity,
                         .sentences = rows.sentences,
                         .beams = rows.beams,
                         .size = p.spec.decoder.hidden,
                         .total_rows = p.limits.rows(),
                         .history = w.history,
                         .slots = rows.slots});
}

// norm: as decoder_layers returns it.
template <typename Stream, typename T, typename C>
void output_logits(const Pass<Stream, T, C>& p, const Norm& norm, int rows) {
  const Workspace<T>& w = p.workspace;
  project_output(p, w.step, w.step.x, norm, w.logits, rows);
}

// The rows of a search's step; with guidance the unconditional rows follow the others. sentences:
// at least the active ones.
template <typename Stream, typename T, typename C>
StepRows step_rows(const Pass<Stream, T, C>& p, int sentences, int beams, bool guided) {
  const Workspace<T>& w = p.workspace;
  if (!guided) {
    return {.state = w.inputs.state,
            .ids = w.inputs.ids,
            .positions = w.inputs.positions,
            .active = w.inputs.active,
            .sentences = sentences,
            .beams = beams,
            .slots = beams};
  }
  unconditional_rows(p.stream, {.state = w.inputs.state,
                                .active = w.inputs.active,
                                .ids = w.inputs.ids,
                                .unconditional = w.inputs.unconditional,
                                .unconditional_ids = w.inputs.unconditional_ids,
                                .prompt_lengths = w.inputs.prompt_lengths,
                                .cache_indirection = w.cache_indirection,
                                .all_state = w.all_state,
                                .all_active = w.all_active,
                                .all_ids = w.all_ids,
                                .all_positions = w.all_positions,
                                .sentences = sentences,
                                .beams = beams,
                                .total_rows = p.limits.rows(),
                                .history = w.history});
  return {.state = w.all_state,
          .ids = w.all_ids,
          .positions = w.all_positions,
          .active = w.all_active,
          .sentences = 2 * sentences,
          .beams = beams,
          .slots = beams};
}

// The first `prefix` positions of an encoder-decoder's prompts, one after the other: the first row
// of each sentence reads them for all of its rows.
template <typename Stream, typename T, typename C>
void read_prefix(const Pass<Stream, T, C>& p, int sentences, int beams, int prefix) {
  const Workspace<T>& w = p.workspace;
  for (int i = 0; i < prefix; ++i) {
    const StepRows rows{.state = w.inputs.state,
                        .ids = w.inputs.prompt_ids + i * sentences,
                        .positions = w.inputs.prompt_positions + i * sentences,
                        .active = w.inputs.prompt_active + i * sentences,
                        .sentences = sentences,
                        .beams = 1,
                        .slots = beams};
    const Norm norm = decoder_layers(p, rows);
    if (w.hidden == nullptr) continue;
    layer_norm<T>(p.stream, {.x = w.step.x,
                             .norm = norm,
                             .y = w.step.normed,
                             .rows = sentences,
                             .cols = p.spec.decoder.hidden});
    keep_hidden(p, rows);
  }
}

}  // namespace decoding
