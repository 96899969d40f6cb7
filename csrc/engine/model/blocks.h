// The parts of a layer that the packed pass and the decode step share.
//
// Between blocks stands the residual stream x. A block's first product reads it through a norm: its
// own in pre-norm models; in post-norm ones that of the block before, which is still due (none
// before the first block). Its last product adds to what the model adds to: x itself in pre-norm
// models, norm(x) in post-norm ones.
//
// In parallel models feed-forward reads what attention reads, so its first product comes before
// attention's last one, which changes x.
#pragma once

#include "core/spec.h"
#include "engine/model/weights.h"
#include "engine/model/workspace.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/rotary.h"
#include "kernels/conv/depthwise.h"
#include "kernels/linear/linear.h"
#include "kernels/rows/norm.h"
#include "kernels/rows/soft_cap.h"

namespace decoding {

template <typename T>
struct BlockInput {
  const T* x;
  Norm norm;
  const T* residual;
};

// due: the norm that stands before this block, then the one before the next.
template <typename T>
BlockInput<T> enter_block(const StackSpec& spec, const Norm& own, Norm& due,
                          const Activations<T>& a) {
  if (spec.pre_norm) return {a.x, own, a.x};
  const Norm before = due;
  due = own;
  return {a.x, before, before.gamma != nullptr ? a.normed : a.x};
}

// y = activation(linear(norm(x))). gated: scratch of a gated product, see linear.h.
template <typename T, typename Stream>
void first_product(Stream& stream, const Linear& in, const BlockInput<T>& block,
                   const Activations<T>& a, T* y, int rows,
                   Activation activation = Activation::none, T* gated = nullptr) {
  linear<T>(stream, {.x = block.x,
                     .norm = block.norm,
                     .normed = a.normed,
                     .weight = in.weight,
                     .bias = in.bias,
                     .y = y,
                     .gated = gated,
                     .scratch = a.scratch,
                     .rows = rows,
                     .activation = activation});
}

// x = post(linear(y)) + residual. post: the norm behind the block; few models have one.
template <typename T, typename Stream>
void last_product(Stream& stream, const Linear& out, const Norm& post, const T* residual,
                  const Activations<T>& a, const T* y, int rows) {
  const bool plain = post.gamma == nullptr;
  linear<T>(stream, {.x = y,
                     .weight = out.weight,
                     .bias = out.bias,
                     .residual = plain ? residual : nullptr,
                     .y = plain ? a.x : a.normed,
                     .scratch = a.scratch,
                     .rows = rows});
  if (plain) return;
  layer_norm<T>(stream, {.x = a.normed,
                         .norm = post,
                         .y = a.x,
                         .rows = rows,
                         .cols = out.weight.outputs,
                         .residual = residual});
}

// What happens to queries and keys between their product and attention. at: [rows], positions.
inline Rotation rotation_of(const StackSpec& spec, const StackWeights& weights,
                            const LayerWeights& layer, const int32_t* at) {
  const RotarySpec rotary = spec.rotary.value_or(RotarySpec{0, false, 1.0f, 1, 0});
  return {.at = at,
          .q_norm = layer.q_norm,
          .k_norm = layer.k_norm,
          .frequencies = weights.rotary,
          .tables = rotary_tables(spec),
          .factor = rotary.factor,
          .size = rotary.size,
          .interleaved = rotary.interleaved};
}

// What a convolution of layer i reads, in a.qkv; returns its taps.
template <typename T, typename Stream>
Taps<T> make_convolution(Stream& stream, const StackSpec& spec, const StackWeights& weights, int i,
                         const BlockInput<T>& block, const Activations<T>& a, int rows) {
  const LayerWeights& layer = weights.layers[i];
  const ConvolutionSpec& convolution = *spec.convolution;
  const Activation activation = convolution.gated ? Activation::sigmoid : Activation::none;
  first_product<T>(stream, layer.input, block, a, a.qkv, rows, activation, a.glu);
  if (convolution.dynamic) {
    linear<T>(stream, {.x = a.qkv,
                       .weight = layer.make_taps.weight,
                       .y = a.taps,
                       .scratch = a.scratch,
                       .rows = rows});
  }
  return {.weights = layer.taps, .scores = a.taps, .size = convolution.taps[i]};
}

// a.ffn = activation(up x), or activation(gate x) * up x
template <typename T, typename Stream>
void feed_in(Stream& stream, const StackSpec& spec, const LayerWeights& layer,
             const BlockInput<T>& block, const Activations<T>& a, int rows) {
  first_product<T>(stream, layer.up, block, a, a.ffn, rows, spec.activation, a.gated);
}

// What follows self-attention's softmax: its way out.
template <typename T, typename Stream>
void leave_self_attention(Stream& stream, const StackSpec& spec, const LayerWeights& layer,
                          const BlockInput<T>& block, const Activations<T>& a, int rows) {
  if (spec.parallel) {
    // Through attention's norm x lies in `normed`, where the first product has left it.
    const auto beside = spec.shared_norm ? BlockInput<T>{a.normed, Norm{}, a.x}
                                         : BlockInput<T>{a.x, layer.feed_forward_norm, a.x};
    feed_in(stream, spec, layer, beside, a, rows);
  }
  last_product<T>(stream, layer.self_out, layer.self_post, block.residual, a, a.attended, rows);
}

// In parallel models the rest of it: see leave_self_attention.
template <typename T, typename Stream>
void feed_forward(Stream& stream, const StackSpec& spec, const LayerWeights& layer, Norm& due,
                  const Activations<T>& a, int rows) {
  const T* residual = a.x;
  if (!spec.parallel) {
    const auto block = enter_block(spec, layer.feed_forward_norm, due, a);
    feed_in(stream, spec, layer, block, a, rows);
    residual = block.residual;
  }
  last_product<T>(stream, layer.down, layer.feed_forward_post, residual, a, a.ffn, rows);
}

// What tells the scores of layer i how far keys lie from their queries.
inline ScoreRules score_rules(const StackSpec& spec, const StackWeights& weights, int i) {
  ScoreRules rules{.cap = spec.attention_cap, .window = spec.window.empty() ? 0 : spec.window[i]};
  if (spec.position_bias == PositionBias::alibi) rules.slopes = weights.position_bias;
  if (spec.position_bias == PositionBias::relative) {
    const int own = spec.bias_by_layer ? i * spec.heads[i] * (2 * spec.reach + 1) : 0;
    rules.table = weights.position_bias + own;
    rules.reach = spec.reach;
  }
  return rules;
}

template <typename T, typename Stream>
void normalize(Stream& stream, const StackSpec& spec, const Norm& norm, const Activations<T>& a,
               int rows) {
  layer_norm<T>(stream, {.x = a.x, .norm = norm, .y = a.x, .rows = rows, .cols = spec.hidden});
}

// x = cap * tanh(x / cap), where the model's logits have a cap.
template <typename T, typename Stream>
void cap_logits(Stream& stream, const ModelSpec& spec, T* x, int rows, int cols, int stride) {
  if (spec.logits_cap == 0.0f) return;
  soft_cap<T>(stream,
              {.x = x, .rows = rows, .cols = cols, .stride = stride, .cap = spec.logits_cap});
}

// The norm through which a stack's output is read, when its layers have left x.
template <typename T, typename Stream>
Norm last_norm(Stream& stream, const StackSpec& spec, const StackWeights& weights, const Norm& due,
               const Activations<T>& a, int rows) {
  if (!spec.final_norm) return due;
  if (due.gamma != nullptr) normalize(stream, spec, due, a, rows);
  return weights.norm;
}

}  // namespace decoding
