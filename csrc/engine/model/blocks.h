// The parts of a layer that the packed pass and the decode step share.
//
// Between blocks lies the residual stream x. A block's first product reads x through a norm: in
// pre-norm models the block's own, in post-norm models that of the block before, which is pending
// (none before the first block). Its last product adds to the model's residual: to x itself in
// pre-norm models, to norm(x) in post-norm models.
//
// In parallel models feed-forward reads the same x as attention, so its first product comes before
// attention's last one, which changes x.
#pragma once

#include "core/spec.h"
#include "engine/model/overflow.h"
#include "engine/model/parallel.h"
#include "engine/model/weights.h"
#include "engine/model/workspace.h"
#include "kernels/attention/bias.h"
#include "kernels/attention/rotary.h"
#include "kernels/conv/depthwise.h"
#include "kernels/linear/linear.h"
#include "kernels/rows/norm.h"
#include "kernels/rows/soft_cap.h"

namespace decoding {

// `rows` rows on their way through the layers of a stack.
template <typename Stream, typename T>
struct StackPass {
  Stream& stream;
  const StackSpec& spec;
  const StackWeights& weights;
  const Activations<T>& a;
  int rows;
  Norm pending_norm = {};  // post-norm models: the norm after the last block, not yet applied to x

  const LayerWeights& layer(int i) const { return weights.layers[i]; }
};

template <typename T>
struct BlockInput {
  const T* x;
  Norm norm;
  const T* residual;
};

// norm: of the block.
template <typename Stream, typename T>
BlockInput<T> enter_block(StackPass<Stream, T>& p, const Norm& norm) {
  if (p.spec.pre_norm) return {p.a.x, norm, p.a.x};
  const Norm before = p.pending_norm;
  p.pending_norm = norm;
  return {p.a.x, before, before.gamma != nullptr ? p.a.normed : p.a.x};
}

// Whether a product can be W8A8.
template <typename Stream, typename T>
bool quantizes(const StackPass<Stream, T>& p, const Linear& in) {
  return p.a.quantized.data != nullptr && !is_split(p.stream) && can_quantize(in.weight, p.rows);
}

// y = activation(linear(norm(x))). gated: scratch of a gated product, see linear.h. Where it and
// the `next` product, which reads y alone, are W8A8, y is in a.quantized instead: then it is true.
template <typename Stream, typename T>
bool first_product(const StackPass<Stream, T>& p, const Linear& in, const BlockInput<T>& block,
                   T* y, Activation activation = Activation::none, T* gated = nullptr,
                   const Linear* next = nullptr) {
  const bool activates = activation != Activation::none || gated != nullptr;
  const bool quantized = block.norm.gamma != nullptr && quantizes(p, in) &&
                         (next != nullptr ? quantizes(p, *next) : !activates);
  const LinearParams<T> product{.x = block.x,
                                .norm = block.norm,
                                .normed = p.a.normed,
                                .weight = in.weight,
                                .bias = in.bias,
                                .y = y,
                                .gated = gated,
                                .quantized = quantized ? p.a.quantized : QuantizedRows{},
                                .quantizes_y = quantized && activates,
                                .scratch = p.a.scratch,
                                .rows = p.rows,
                                .activation = activation};
  const bool is_residual = !p.spec.pre_norm;  // norm(x), which all ranks have
  linear<T>(p.stream, is_residual && is_split(p.stream) ? after_norm(p.stream, product) : product);
  return product.quantizes_y;
}

// x = post(linear(y)) + residual. post: the norm after the block; few models have one. y: null
// where it is in a.quantized.
template <typename Stream, typename T>
void last_product(const StackPass<Stream, T>& p, const Linear& out, const Norm& post,
                  const T* residual, const T* y) {
  const bool plain = post.gamma == nullptr;
  const LinearParams<T> product{.x = y,
                                .weight = out.weight,
                                .bias = out.bias,
                                .residual = plain ? residual : nullptr,
                                .y = plain ? p.a.x : p.a.normed,
                                .quantized = y == nullptr ? p.a.quantized : QuantizedRows{},
                                .scratch = p.a.scratch,
                                .rows = p.rows};
  is_split(p.stream) ? summed_linear(p.stream, product) : linear<T>(p.stream, product);
  if (plain) return;
  layer_norm<T>(p.stream, {.x = p.a.normed,
                           .norm = post,
                           .y = p.a.x,
                           .rows = p.rows,
                           .cols = out.weight.outputs,
                           .residual = residual});
}

// x = scale * tokens[ids] + positions, through the embedding's norm.
template <typename Stream, typename T>
void embed_tokens(const StackPass<Stream, T>& p, const int32_t* ids, const int32_t* positions) {
  const EmbedParams<T> params{.ids = ids,
                              .positions = positions,
                              .tokens = p.weights.tokens,
                              .position_table = static_cast<const T*>(p.weights.positions),
                              .norm = p.weights.embed_norm,
                              .y = p.a.x,
                              .rows = p.rows,
                              .hidden = p.spec.hidden,
                              .scale = p.spec.embed_scale};
  is_split(p.stream) ? summed_embed(p.stream, params) : embed<T>(p.stream, params);
}

// Layer i's transformation of queries and keys. positions: [rows].
template <typename Stream, typename T>
Rotary rotary_of(const StackPass<Stream, T>& p, int i, const int32_t* positions) {
  const RotarySpec rotary = p.spec.rotary.value_or(RotarySpec{0, false, 1.0f, 1, 0});
  return {.positions = positions,
          .q_norm = p.layer(i).q_norm,
          .k_norm = p.layer(i).k_norm,
          .frequencies = p.weights.rotary,
          .tables = rotary_tables(p.spec),
          .factor = rotary.factor,
          .size = rotary.size,
          .interleaved = rotary.interleaved};
}

// The bias of layer i's attention scores.
inline AttentionBias attention_bias(const StackSpec& spec, const StackWeights& weights, int i) {
  AttentionBias bias{.cap = spec.attention_cap, .window = spec.window.empty() ? 0 : spec.window[i]};
  if (spec.position_bias == PositionBias::alibi) bias.slopes = weights.position_bias;
  if (spec.position_bias == PositionBias::relative) {
    const int before = spec.bias_by_layer ? i * spec.heads[i] * (2 * spec.reach + 1) : 0;
    bias.table = weights.position_bias + before;
    bias.reach = spec.reach;
  }
  return bias;
}

// Leaves the input of layer i's convolution in a.qkv.
template <typename Stream, typename T>
void make_convolution(const StackPass<Stream, T>& p, int i, const BlockInput<T>& block) {
  const ConvolutionSpec& convolution = *p.spec.convolution;
  const Activation activation = convolution.gated ? Activation::sigmoid : Activation::none;
  first_product(p, p.layer(i).input, block, p.a.qkv, activation, p.a.glu);
  if (convolution.dynamic) {
    linear<T>(p.stream, {.x = p.a.qkv,
                         .weight = p.layer(i).conv_scores.weight,
                         .y = p.a.conv_scores,
                         .scratch = p.a.scratch,
                         .rows = p.rows});
  }
}

// Of the rows from `first` on.
template <typename Stream, typename T>
DepthwiseWeights<T> convolution_weights(const StackPass<Stream, T>& p, int i, int64_t first = 0) {
  const int kernel_size = p.spec.convolution->kernel_sizes[i];
  const bool dynamic = p.spec.convolution->dynamic;
  return {.weights = p.layer(i).conv_weights,
          .scores = dynamic ? p.a.conv_scores + first * p.spec.heads[i] * kernel_size : nullptr,
          .kernel_size = kernel_size};
}

// Returns a.ffn = activation(up x), or activation(gate x) * up x; null where it is in a.quantized.
template <typename Stream, typename T>
const T* feed_in(const StackPass<Stream, T>& p, int i, const BlockInput<T>& block) {
  const Linear* next = p.spec.parallel ? nullptr : &p.layer(i).down;
  const bool quantized =
      first_product(p, p.layer(i).up, block, p.a.ffn, p.spec.activation, p.a.gated, next);
  return quantized ? nullptr : p.a.ffn;
}

// From self-attention's output, in a.attended, to x; so for a convolution in its place.
template <typename Stream, typename T>
void leave_self_attention(const StackPass<Stream, T>& p, int i, const BlockInput<T>& block) {
  const LayerWeights& layer = p.layer(i);
  if (p.spec.parallel) {
    // With a shared norm x has been left in `normed` by attention's first product.
    const auto beside = p.spec.shared_norm ? BlockInput<T>{p.a.normed, Norm{}, p.a.x}
                                           : BlockInput<T>{p.a.x, layer.feed_forward_norm, p.a.x};
    feed_in(p, i, beside);
  }
  last_product(p, layer.self_out, layer.self_post, block.residual, p.a.attended);
}

// In parallel models only its last product: see leave_self_attention.
template <typename Stream, typename T>
void feed_forward(StackPass<Stream, T>& p, int i) {
  const LayerWeights& layer = p.layer(i);
  const T *residual = p.a.x, *y = p.a.ffn;
  if (!p.spec.parallel) {
    const auto block = enter_block(p, layer.feed_forward_norm);
    y = feed_in(p, i, block);
    residual = block.residual;
  }
  last_product(p, layer.down, layer.feed_forward_post, residual, y);
}

// What a block has left: look(layer, site, x, cols) is called for each of its tensors.
template <typename Stream, typename T, typename Look>
void look_at_self_attention(const StackPass<Stream, T>& p, int i, Look&& look) {
  look(i, Site::self_projections, p.a.qkv, p.spec.convolution ? p.spec.inner(i) : p.spec.qkv(i));
  look(i, Site::self_output, p.a.x, p.spec.hidden);
}
template <typename Stream, typename T, typename Look>
void look_at_cross_attention(const StackPass<Stream, T>& p, int i, Look&& look) {
  look(i, Site::cross_queries, p.a.qkv, p.spec.inner(i));
  look(i, Site::cross_output, p.a.x, p.spec.hidden);
}
template <typename Stream, typename T, typename Look>
void look_at_feed_forward(const StackPass<Stream, T>& p, int i, Look&& look) {
  look(i, Site::feed_forward_inner, p.a.ffn, p.spec.ffn[i]);
  look(i, Site::feed_forward_output, p.a.x, p.spec.hidden);
}

// x = norm(x)
template <typename Stream, typename T>
void normalize(const StackPass<Stream, T>& p, const Norm& norm) {
  layer_norm<T>(p.stream,
                {.x = p.a.x, .norm = norm, .y = p.a.x, .rows = p.rows, .cols = p.spec.hidden});
}

// The norm through which a stack's output is read, once its layers have left x.
template <typename Stream, typename T>
Norm last_norm(const StackPass<Stream, T>& p) {
  if (!p.spec.final_norm) return p.pending_norm;
  if (p.pending_norm.gamma != nullptr) normalize(p, p.pending_norm);
  return p.weights.norm;
}

// x = cap * tanh(x / cap), where the model's logits have a cap.
template <typename T, typename Stream>
void cap_logits(Stream& stream, const ModelSpec& spec, T* x, int rows, int cols, int stride) {
  if (spec.logits_cap == 0.0f) return;
  soft_cap<T>(stream,
              {.x = x, .rows = rows, .cols = cols, .stride = stride, .cap = spec.logits_cap});
}

}  // namespace decoding
