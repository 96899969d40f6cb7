// The parts of a layer that the packed pass and the decode step share.
#pragma once

#include "core/spec.h"
#include "engine/weights.h"
#include "engine/workspace.h"
#include "kernels/linear.h"
#include "kernels/norm.h"

namespace decoding {

template <typename T, typename Stream>
void normalize(Stream& stream, const StackSpec& spec, const Norm& norm, const T* x, T* y,
               int rows) {
  layer_norm<T>(stream, {.x = x,
                         .gamma = norm.gamma,
                         .beta = norm.beta,
                         .y = y,
                         .rows = rows,
                         .cols = spec.hidden,
                         .eps = spec.eps});
}

// What a block reads: the normed residual stream in pre-norm models, else the stream itself.
template <typename T, typename Stream>
const T* block_input(Stream& stream, const StackSpec& spec, const Norm& norm,
                     const Activations<T>& a, int rows) {
  if (!spec.pre_norm) return a.x;
  normalize<T>(stream, spec, norm, a.x, a.h, rows);
  return a.h;
}

// x += linear(y), and in post-norm models x = norm(x).
template <typename T, typename Stream>
void block_output(Stream& stream, const StackSpec& spec, const Norm& norm, const Linear& out,
                  const T* y, const Activations<T>& a, int rows) {
  linear<T>(
      stream,
      {.x = y, .weight = out.weight, .bias = out.bias, .residual = a.x, .y = a.x, .rows = rows});
  if (!spec.pre_norm) normalize<T>(stream, spec, norm, a.x, a.x, rows);
}

template <typename T, typename Stream>
void feed_forward(Stream& stream, const StackSpec& spec, const LayerWeights& layer,
                  const Activations<T>& a, int rows) {
  const T* x = block_input(stream, spec, layer.feed_forward_norm, a, rows);
  linear<T>(stream, {.x = x,
                     .weight = layer.up.weight,
                     .bias = layer.up.bias,
                     .y = a.ffn,
                     .rows = rows,
                     .activation = spec.activation});
  block_output<T>(stream, spec, layer.feed_forward_norm, layer.down, a.ffn, a, rows);
}

}  // namespace decoding
