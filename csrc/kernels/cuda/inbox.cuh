// How the blocks that share a row, or a sentence, hand over what they found to the one that goes on
// alone. On sm_90 they are a cluster, and each word is sent into the shared memory of the cluster's
// first block, which counts what has arrived: one trip, and no barrier that would wait for other
// memory or empty the L1 cache. Elsewhere words go through a scratch buffer, and whoever hands in
// the last ticket goes on.
#pragma once

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/row_messages.cuh"

namespace decoding::cuda::selection {

enum class Meeting {
  none,     // one block has a row to itself
  tickets,  // blocks share a row
  cluster   // blocks share a row or a sentence
};

// The first as the upper half.
using Word = unsigned long long;
__device__ __forceinline__ Word pair(float first, float second) {
  return Word{__float_as_uint(first)} << 32 | __float_as_uint(second);
}
__device__ __forceinline__ float first_of(Word word) {
  return __uint_as_float(static_cast<uint32_t>(word >> 32));
}
__device__ __forceinline__ float second_of(Word word) {
  return __uint_as_float(static_cast<uint32_t>(word));
}

__device__ __forceinline__ void send(int block, const Word* place, Word word,
                                     const uint64_t* counter) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 to, count;\n"
      "mapa.shared::cluster.u32 to, %0, %3;\n"
      "mapa.shared::cluster.u32 count, %1, %3;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [to], %2, [count];\n"
      "}" ::"r"(shared_address(place)),
      "r"(shared_address(counter)), "l"(word), "r"(block)
      : "memory");
#endif
}

// The words of one row, for the blocks that find them.
struct Inbox {
  Meeting meeting;
  Word* words;              // where they lie in the shared memory of the block that reads them
  const uint64_t* arrived;  // counts them there, in a cluster
  float *first, *second;    // their halves in scratch, for those who meet by tickets

  __device__ __forceinline__ void put(int at, Word word) const {
    if (meeting == Meeting::cluster) {
      send(0, words + at, word, arrived);
    } else if (meeting == Meeting::tickets) {
      first[at] = first_of(word);
      second[at] = second_of(word);
    } else {
      words[at] = word;
    }
  }
  // For the last to arrive.
  __device__ void take_from_scratch(int count) const {
#pragma unroll 4
    for (int at = threadIdx.x; at < count; at += kThreads) {
      words[at] = pair(__ldcg(first + at), __ldcg(second + at));
    }
  }
};

__device__ __forceinline__ void wait_for_words(const uint64_t* arrived) {
  while (!complete(arrived, 0)) {
  }
}

}  // namespace decoding::cuda::selection
