// A call's phrases on their way to the GPU.
#pragma once

#include "engine/search/constraints.h"
#include "kernels/cuda/resources.h"

namespace decoding {

// What is copied lies in pageable memory: each copy has been staged when the call returns.
inline void send_phrases(const PhraseMemory& memory, const PhraseTables& tables, const Batch& batch,
                         int beams, const Limits& limits, cudaStream_t stream) {
  const PhraseStart start = start_phrases(tables, batch, beams, memory.words);
  const auto put = [&](auto* to, const auto* from, size_t count) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, count * sizeof(*from), cudaMemcpyHostToDevice, stream));
  };
  put(memory.phrases, &start.phrases, 1);
  put(memory.words, start.words.data(), start.words.size());
  const int64_t table = int64_t{limits.rows()} * (kProgress + start.phrases.count);
  put(memory.progress + table, start.progress.data(), start.progress.size());
  CUDA_CHECK(cudaMemsetAsync(memory.spare_count, 0, sizeof(int32_t) * batch.sentences, stream));
}

}  // namespace decoding
