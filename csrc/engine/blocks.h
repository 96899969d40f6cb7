// The parts of a layer that the packed pass and the decode step share.
//
// Between blocks stands the residual stream x. A block's first product reads it through a norm: its
// own in pre-norm models; in post-norm ones that of the block before, which is still due (none
// before the first block). Its last product adds to what the model adds to: x itself in pre-norm
// models, norm(x) in post-norm ones.
#pragma once

#include "core/spec.h"
#include "engine/weights.h"
#include "engine/workspace.h"
#include "kernels/linear.h"
#include "kernels/norm.h"

namespace decoding {

template <typename T>
struct BlockInput {
  Norm norm;
  const T* residual;
};

// due: the norm that stands before this block, then the one before the next.
template <typename T>
BlockInput<T> enter_block(const StackSpec& spec, const Norm& own, Norm& due,
                          const Activations<T>& a) {
  if (spec.pre_norm) return {own, a.x};
  const Norm before = due;
  due = own;
  return {before, before.gamma != nullptr ? a.normed : a.x};
}

// y = activation(linear(norm(x)))
template <typename T, typename Stream>
void first_product(Stream& stream, const Linear& in, const BlockInput<T>& block,
                   const Activations<T>& a, T* y, int rows,
                   Activation activation = Activation::none) {
  linear<T>(stream, {.x = a.x,
                     .norm = block.norm,
                     .normed = a.normed,
                     .weight = in.weight,
                     .bias = in.bias,
                     .y = y,
                     .scratch = a.scratch,
                     .rows = rows,
                     .activation = activation});
}

// x = linear(y) + residual
template <typename T, typename Stream>
void last_product(Stream& stream, const Linear& out, const BlockInput<T>& block,
                  const Activations<T>& a, const T* y, int rows) {
  linear<T>(stream, {.x = y,
                     .weight = out.weight,
                     .bias = out.bias,
                     .residual = block.residual,
                     .y = a.x,
                     .scratch = a.scratch,
                     .rows = rows});
}

template <typename T, typename Stream>
void feed_forward(Stream& stream, const StackSpec& spec, const LayerWeights& layer, Norm& due,
                  const Activations<T>& a, int rows) {
  const auto block = enter_block(spec, layer.feed_forward_norm, due, a);
  first_product<T>(stream, layer.up, block, a, a.ffn, rows, spec.activation);
  last_product<T>(stream, layer.down, block, a, a.ffn, rows);
}

template <typename T, typename Stream>
void normalize(Stream& stream, const StackSpec& spec, const Norm& norm, const Activations<T>& a,
               int rows) {
  layer_norm<T>(stream, {.x = a.x, .norm = norm, .y = a.x, .rows = rows, .cols = spec.hidden});
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
