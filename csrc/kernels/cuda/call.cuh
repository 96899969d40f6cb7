// What a call asks for, at hand in shared memory. No kernel of a step writes it, so that a block
// may ask for it before it waits.
#pragma once

#include "kernels/cuda/block.cuh"
#include "kernels/select.h"

namespace decoding::cuda::selection {

class Call {
 public:
  // A thread's part of what a call asks for, and, known to each, when there is something to do
  // about the rules.
  struct Part {
    uint32_t word;
    int32_t eos;
    bool always, first, last;
    int32_t until, max_new;

    __device__ bool changes(int step) const {
      return always || step <= until || (first && step == 1) || (last && step == max_new);
    }
  };
  __device__ static Part ask(const SelectRules* rules, const int32_t* eos) {
    Part part = {0, 0};
    if (threadIdx.x < kWords) part.word = reinterpret_cast<const uint32_t*>(rules)[threadIdx.x];
    if (threadIdx.x < min(rules->eos_count, kFew)) part.eos = eos[threadIdx.x];
    part.always = rules->banned_count > 0 || rules->renormalize;
    part.first = rules->forced_first_count > 0;
    part.last = rules->forced_last_count > 0;
    part.until = rules->eos_count > 0 ? rules->min_new : 0;
    part.max_new = rules->max_new;
    return part;
  }
  // Puts it down; the threads must meet before they read.
  __device__ void take(Part part) {
    if (threadIdx.x < kWords) reinterpret_cast<uint32_t*>(&rules)[threadIdx.x] = part.word;
    if (threadIdx.x < kFew) eos_[threadIdx.x] = part.eos;
  }

  // Whether a row ends with a token. eos: all of the ids, in global memory.
  __device__ bool ends(const int32_t* eos, int step, int token) const {
    if (step == rules.max_new) return true;
    const int32_t* ids = rules.eos_count <= kFew ? eos_ : eos;
#pragma unroll 1
    for (int e = 0; e < rules.eos_count; ++e) {
      if (ids[e] == token) return true;
    }
    return false;
  }

  SelectRules rules;

 private:
  static constexpr int kWords = sizeof(SelectRules) / sizeof(uint32_t);
  static constexpr int kFew = 32;

  int32_t eos_[kFew];  // the ids, where they are few
};

}  // namespace decoding::cuda::selection
