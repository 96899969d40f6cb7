// What a call and the block's sentence ask for, and where the sentence stands, at hand in shared
// memory. It is copied there while the logits are read: nothing waits for it, not even a register.
#pragma once

#include "kernels/cuda/block.cuh"
#include "kernels/search/select.h"
#include "kernels/search/shared/stop.h"

namespace decoding::cuda::selection {

// Few tokens that must not be chosen, which the search leaves out where it comes across them.
struct Bans {
  const int32_t* ids;
  int count;

  __device__ bool has(int id) const {
    bool found = false;
    for (int i = 0; i < count; ++i) found |= ids[i] == id;
    return found;
  }
};

class Call {
 public:
  // Begins to copy what a sentence needs. Threads wait for their copies, and then meet.
  template <typename T>
  __device__ void copy(const SelectParams<T>& p, int id, int index) {
    copy_words(search, p.config.search);
    copy_words(sentence, p.config.sentences + id);
    if (threadIdx.x > 0) return;
    copy_word(&first, p.prompt_lengths + id);
    copy_word(&stop_now, p.stop.stop_now + id);
    if (p.kind == SearchKind::beam) copy_word(&finished, p.finished_count + id);
    if (p.kind == SearchKind::sampling) copy_word(&random_row, p.random_row + index);
  }
  // Then the ids of few banned tokens, and of few end tokens, side by side.
  __device__ void copy_few(const int32_t* words) {
    const Span banned = sentence.banned, eos = sentence.eos;
    const int thread = threadIdx.x, end = thread - kFew;
    if (end < 0 && end + banned.count >= 0) {
      copy_word(few_ + thread, words + banned.begin + banned.count + end);
    } else if (0 <= end && end < min(eos.count, kFew)) {
      copy_word(few_ + thread, words + eos.begin + end);
    }
  }
  __device__ static void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

  // Whether the config changes what may be chosen in a step.
  __device__ bool changes(int step) const {
    return !search.processed &&
           (sentence.banned.count > 0 || sentence.renormalize ||
            (step <= sentence.min_new && sentence.eos.count > 0) || sentence.forces(step));
  }
  // Whether all that it does is to ban few tokens; which those are.
  __device__ bool bans_few(int step) const {
    return !search.processed && !sentence.renormalize && !sentence.forces(step) &&
           max(sentence.banned.count, sentence.eos.count) <= kFew;
  }
  __device__ Bans bans(int step) const {
    const int banned = sentence.banned.count;
    return {few_ + kFew - banned, banned + (step <= sentence.min_new ? sentence.eos.count : 0)};
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
    return {count <= kFew ? few_ + kFew : p.config.words + sentence.eos.begin,
            sentence.stop_table,
            &stop_now,
            p.stop,
            count,
            sentence.max_new};
  }

  SearchConfig search;
  SentenceConfig sentence;
  int32_t first;        // of prompt_lengths
  int32_t stop_now;     // of stop.h
  int32_t finished;     // rows of the finished list, in beam search
  uint32_t random_row;  // of the block's row, in sampling

 private:
  static constexpr int kFew = 32;

  __device__ static void copy_word(void* to, const void* from) {
    const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
  }
  template <typename Config>
  __device__ static void copy_words(Config& to, const Config* from) {
    constexpr int words = sizeof(Config) / sizeof(uint32_t);
    static_assert(words <= kThreads);
    const int i = threadIdx.x;
    if (i >= words) return;
    copy_word(reinterpret_cast<uint32_t*>(&to) + i, reinterpret_cast<const uint32_t*>(from) + i);
  }

  int32_t few_[2 * kFew];  // the banned ids, then those of end tokens, where they are few
};

}  // namespace decoding::cuda::selection
