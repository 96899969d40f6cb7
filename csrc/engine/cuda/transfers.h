// What goes between the host and a GPU around a search, through memory that both can reach: a
// call's inputs over in one copy, its results back in one go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/model/labelled.h"
#include "engine/model/workspace.h"
#include "engine/search/constraints.h"
#include "engine/search/faults.h"
#include "engine/search/results.h"
#include "kernels/cuda/resources.h"

namespace decoding {

// A request in a GPU's memory, where captured steps find it; it goes over in one copy.
class CudaConfig {
 public:
  CudaConfig() = default;
  CudaConfig(Arena& arena, const Limits& limits, int vocab) : sentences_(limits.batch) {
    // The lists of a request that is not processed are of end, banned and forced tokens.
    words_ = int64_t{kLists} * vocab + limits.controls;
    data_ = arena.take<uint8_t>("config", {words_at() + int64_t{sizeof(int32_t)} * words_});
  }

  // Memory to send from, which must stay until the copy has ended.
  cuda::PinnedMemory staging() const {
    return cuda::PinnedMemory(words_at() + sizeof(int32_t) * words_);
  }

  void send(const Request& request, const cuda::PinnedMemory& staging, cudaStream_t stream) const {
    const size_t words = request.words.size();
    CHECK(static_cast<int64_t>(words) <= words_, "the lists of a request have ", words,
          " ids, there is room for ", words_);
    auto* from = static_cast<std::byte*>(staging.data());
    const SearchConfig search = request.search_config();
    std::memcpy(from, &search, sizeof(SearchConfig));
    std::memcpy(from + sizeof(SearchConfig), request.configs.data(),
                sizeof(SentenceConfig) * request.configs.size());
    if (words > 0) std::memcpy(from + words_at(), request.words.data(), sizeof(int32_t) * words);
    CUDA_CHECK(cudaMemcpyAsync(data_, from, words_at() + sizeof(int32_t) * words,
                               cudaMemcpyHostToDevice, stream));
  }

  ConfigView view() const {
    return {reinterpret_cast<const SearchConfig*>(data_),
            reinterpret_cast<const SentenceConfig*>(data_ + sizeof(SearchConfig)),
            reinterpret_cast<const int32_t*>(data_ + words_at())};
  }

 private:
  static constexpr int kLists = 3;
  static_assert(sizeof(SearchConfig) % alignof(SentenceConfig) == 0);

  int64_t words_at() const {
    return sizeof(SearchConfig) + sizeof(SentenceConfig) * int64_t{sentences_};
  }

  uint8_t* data_ = nullptr;  // the search's, the sentences', the words
  int sentences_ = 0;
  int64_t words_ = 0;
};

class CudaTransfers {
 public:
  CudaTransfers() = default;
  CudaTransfers(const ModelSpec& spec, const Limits& limits) : total_rows_(limits.rows()) {
    Arena measured;
    Inputs(measured, spec, limits);
    staging_ = cuda::PinnedMemory(measured.bytes());
    Arena arena(staging_.data(), staging_.bytes());
    inputs_ = Inputs(arena, spec, limits);
    const size_t history = sizeof(int32_t) * limits.target * limits.rows();
    tokens_ = cuda::PinnedMemory(history);
    parents_ = cuda::PinnedMemory(history);
    finished_ = cuda::PinnedMemory(sizeof(Hypothesis) * limits.batch * limits.places());
  }

  // to: the head of the pool.
  void send(const Inputs& to, const Batch& batch, const Request& request, const ModelSpec& spec,
            const Limits& limits, cudaStream_t stream) const {
    fill_inputs(inputs_, batch, request, spec, limits);
    send(to, stream);
  }
  void send(const Inputs& to, const Labelled& labelled, const ModelSpec& spec, const Limits& limits,
            cudaStream_t stream) const {
    fill_labelled(inputs_, labelled, spec, limits);
    send(to, stream);
  }

  // Waits for what was launched. steps: of the history, at least those that were needed. tensor_of:
  // see check_faults.
  template <typename T, typename TensorOf>
  void fetch(const Workspace<T>& w, int steps, const Request& request, cudaStream_t stream,
             TensorOf&& tensor_of) const {
    const size_t sentences = request.sentences(), rows = sentences * request.rows_per_sentence;
    const size_t history = sizeof(int32_t) * steps * total_rows_;
    copy(tokens_.data(), w.tokens, history, stream);
    copy(parents_.data(), w.parents, history, stream);
    copy(finished_.data(), w.finished, sizeof(Hypothesis) * sentences * request.max_finished(),
         stream);
    copy(inputs_.length, w.inputs.length, sizeof(int32_t) * rows, stream);
    copy(inputs_.fault, w.inputs.fault, sizeof(int32_t) * sentences, stream);
    copy(inputs_.state, w.inputs.state, sizeof(StepState), stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    check_faults(inputs_.fault, inputs_.sentence_ids, request.sentences(), tensor_of);
  }

  // What was sent last, on the host.
  const Inputs& inputs() const { return inputs_; }

  // After fetch().
  void write(const Request& request, const Results& results) const {
    fetch_results({static_cast<const int32_t*>(tokens_.data()),
                   static_cast<const int32_t*>(parents_.data()), total_rows_},
                  static_cast<const Hypothesis*>(finished_.data()), inputs_.length,
                  inputs_.state->number - 1, request, results);
  }

 private:
  void send(const Inputs& to, cudaStream_t stream) const {
    CUDA_CHECK(cudaMemcpyAsync(to.source.ids, staging_.data(), staging_.bytes(),
                               cudaMemcpyHostToDevice, stream));
  }
  static void copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream));
  }

  int total_rows_ = 0;
  cuda::PinnedMemory staging_, tokens_, parents_, finished_;
  Inputs inputs_{};  // in staging_
};

// A call's phrases. They lie in pageable memory: each copy has been staged when the call returns.
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
