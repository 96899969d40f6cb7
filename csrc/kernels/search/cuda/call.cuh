// What a call asks for, and what the block's sentence has of its own, at hand in shared memory. No
// kernel of a step writes it, so that a block may ask for it before it waits, or knows its
// sentence.
#pragma once

#include <cstddef>

#include "kernels/cuda/block.cuh"
#include "kernels/search/select.h"
#include "kernels/search/shared/stop.h"

namespace decoding::cuda::selection {

class Call {
 public:
  // A thread's part of what a call asks for, and, known to each, when there is something to do
  // about the rules.
  struct Part {
    uint32_t word;
    int32_t eos;
    bool always, last, processed;
    int32_t until;
  };
  __device__ static Part ask(const SelectRules* rules, const int32_t* eos) {
    Part part = {0, 0};
    if (threadIdx.x < kWords) part.word = reinterpret_cast<const uint32_t*>(rules)[threadIdx.x];
    if (threadIdx.x < min(rules->eos_count, kFew)) part.eos = eos[threadIdx.x];
    part.always = rules->banned_count > 0 || rules->renormalize;
    part.last = rules->forced_last_count > 0;
    part.processed = rules->processed;
    part.until = rules->eos_count > 0 ? rules->min_new : 0;
    return part;
  }
  // A thread's part of what a sentence has of its own.
  __device__ static uint32_t ask_own(const SentenceRules* own) {
    return threadIdx.x < kOwnWords ? reinterpret_cast<const uint32_t*>(own)[threadIdx.x] : 0;
  }
  // Puts it down; the threads must meet before they read. What is processed has been warped.
  __device__ void take(const Part& part, uint32_t own_word) {
    if (threadIdx.x < kWords) reinterpret_cast<uint32_t*>(&rules)[threadIdx.x] = part.word;
    if (threadIdx.x < kFew) eos_[threadIdx.x] = part.eos;
    if (part.processed) {
      if (threadIdx.x == kTopK) own_word = 0;
      if (threadIdx.x == kTemperature || threadIdx.x == kTopP) own_word = __float_as_uint(1.0f);
    }
    if (threadIdx.x < kOwnWords) reinterpret_cast<uint32_t*>(&own)[threadIdx.x] = own_word;
  }

  // Whether the rules change what may be chosen in a step.
  __device__ bool changes(const Part& part, int step) const {
    return !part.processed && (part.always || step <= part.until || forces(step));
  }
  // Whether only forced tokens are left in it.
  __device__ bool forces(int step) const { return forces_first(step) || forces_last(step); }
  __device__ bool forces_first(int step) const { return step == 1 && own.forced_first >= 0; }
  __device__ bool forces_last(int step) const {
    return step == own.max_new && rules.forced_last_count > 0;
  }

  // What ends rows; the ids of end tokens from here where they are few.
  template <typename T>
  __device__ Ends ends(const SelectParams<T>& p) const {
    return {.eos = rules.eos_count <= kFew ? eos_ : p.eos,
            .stop_now = p.stop_now,
            .eos_count = rules.eos_count,
            .stop_table = rules.stop_table,
            .stop_first = p.stop_first,
            .stop_states = p.stop_states};
  }

  SelectRules rules;
  SentenceRules own;

 private:
  static constexpr int kWords = sizeof(SelectRules) / sizeof(uint32_t);
  static constexpr int kOwnWords = sizeof(SentenceRules) / sizeof(uint32_t);
  static constexpr int kTopK = offsetof(SentenceRules, top_k) / sizeof(uint32_t);
  static constexpr int kTemperature = offsetof(SentenceRules, temperature) / sizeof(uint32_t);
  static constexpr int kTopP = offsetof(SentenceRules, top_p) / sizeof(uint32_t);
  static constexpr int kFew = 32;

  int32_t eos_[kFew];  // the ids, where they are few
};

}  // namespace decoding::cuda::selection
