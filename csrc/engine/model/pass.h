// A pass of a model: everything that its functions read and write, but the rows.
#pragma once

#include "engine/model/blocks.h"
#include "engine/model/cache.h"

namespace decoding {

template <typename Stream, typename T, typename C>
struct Pass {
  Stream& stream;
  const ModelSpec& spec;
  const ModelWeights& weights;
  const Workspace<T>& workspace;
  const Cache<C>& cache;
  const Limits& limits;

  // `rows` rows of the decoder, in one of the workspace's activations.
  StackPass<Stream, T> decoder(const Activations<T>& a, int rows) const {
    return {stream, spec.decoder, weights.decoder, a, rows};
  }

  // Whether the rows of a sentence share a prompt; those of an encoder-decoder share a source.
  bool shares_prompts() const { return !spec.encoder && limits.prompt > 1; }

  // Where each sentence's shared keys and values lie.
  PageTable shared_pages() const {
    return {workspace.inputs.shared_pages, shared_pages_of(spec, limits)};
  }
};

// logits = norm(x) W^T + bias with the model's cap, rows `logits_stride` apart. a: of the pass.
template <typename Stream, typename T, typename C>
void project_output(const Pass<Stream, T, C>& p, const Activations<T>& a, const T* x,
                    const Norm& norm, T* logits, int rows) {
  const int stride = p.workspace.logits_stride;
  const LinearParams<T> product{.x = x,
                                .norm = norm,
                                .normed = a.normed,
                                .weight = p.weights.output.weight,
                                .bias = p.weights.output.bias,
                                .y = logits,
                                .scratch = a.scratch,
                                .rows = rows,
                                .stride = stride};
  is_split(p.stream) ? gathered_linear(p.stream, product, p.spec.decoder.vocab)
                     : linear<T>(p.stream, product);
  cap_logits(p.stream, p.spec, logits, rows, p.spec.decoder.vocab, stride);
}

}  // namespace decoding
