// What a call and the block's sentence ask for, at hand in shared memory. No kernel of a step
// writes it, so that a block may ask for the call's part before it waits.
#pragma once

#include "kernels/cuda/block.cuh"
#include "kernels/search/select.h"
#include "kernels/search/shared/stop.h"

namespace decoding::cuda::selection {

class Call {
 public:
  // A thread's word of a config.
  template <typename Config>
  __device__ static uint32_t ask(const Config* config) {
    static_assert(words_of<Config>() <= kThreads);
    if (threadIdx.x >= words_of<Config>()) return 0;
    return reinterpret_cast<const uint32_t*>(config)[threadIdx.x];
  }
  // A thread's id of few end tokens.
  __device__ static int32_t ask_eos(const int32_t* words, Span eos) {
    return threadIdx.x < min(eos.count, kFew) ? words[eos.begin + threadIdx.x] : 0;
  }

  // Stores what the threads have asked for; they must meet before they read.
  __device__ void store(uint32_t search_word, uint32_t sentence_word) {
    put(search, search_word);
    put(sentence, sentence_word);
  }
  __device__ void store_eos(int32_t id) {
    if (threadIdx.x < kFew) eos_[threadIdx.x] = id;
  }

  // Whether the config changes what may be chosen in a step.
  __device__ bool changes(int step) const {
    return !search.processed &&
           (sentence.banned.count > 0 || sentence.renormalize ||
            (step <= sentence.min_new && sentence.eos.count > 0) || sentence.forces(step));
  }
  __device__ bool renormalizes() const { return !search.processed && sentence.renormalize; }
  // Whether rows bring the log-sum-exp of their logits along.
  __device__ bool brings_lse() const { return search.processed && !search.scores_lse; }
  // Of sampling; what is processed has been filtered.
  __device__ FilterConfig filters() const {
    return search.processed ? FilterConfig{} : sentence.filters;
  }

  // What ends rows; the ids of end tokens from here where they are few.
  template <typename T>
  __device__ Ends ends(const SelectParams<T>& p) const {
    const int count = sentence.eos.count;
    return {count <= kFew ? eos_ : p.config.words + sentence.eos.begin, sentence.stop_table, p.stop,
            count, sentence.max_new};
  }

  SearchConfig search;
  SentenceConfig sentence;

 private:
  static constexpr int kFew = 32;

  template <typename Config>
  __host__ __device__ static constexpr int words_of() {
    return sizeof(Config) / sizeof(uint32_t);
  }
  template <typename Config>
  __device__ static void put(Config& config, uint32_t word) {
    if (threadIdx.x < words_of<Config>()) reinterpret_cast<uint32_t*>(&config)[threadIdx.x] = word;
  }

  int32_t eos_[kFew];  // the ids, where they are few
};

}  // namespace decoding::cuda::selection
