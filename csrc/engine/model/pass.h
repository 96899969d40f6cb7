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

  // Positions of all sources, and of all shared prompts, that the cache has room for.
  int64_t source_capacity() const { return int64_t{limits.batch} * limits.source; }
  int64_t prompt_capacity() const {
    return spec.encoder ? 0 : int64_t{limits.batch} * (limits.prompt - 1);
  }
};

}  // namespace decoding
