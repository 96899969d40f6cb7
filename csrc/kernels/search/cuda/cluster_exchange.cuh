// How the blocks that share a row, or a sentence, hand over what they found to the one that goes on
// alone. On sm_90 they are a cluster, and each word is sent into the shared memory of the cluster's
// first block, which counts what has arrived: one trip, and no barrier that would wait for other
// memory or empty the L1 cache. Elsewhere words go through a scratch buffer, and the block that
// arrives last goes on.
#pragma once

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/cluster.cuh"

namespace decoding::cuda::selection {

enum class ExchangeMode {
  none,        // one block has a row to itself
  last_block,  // blocks share a row
  cluster      // blocks share a row or a sentence
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
struct ClusterExchange {
  ExchangeMode mode;
  Word* words;              // where they lie in the shared memory of the block that reads them
  const uint64_t* arrived;  // counts them there, in a cluster
  float *first, *second;    // their halves in scratch, where the last block reads them

  __device__ __forceinline__ void put(int at, Word word) const {
    if (mode == ExchangeMode::cluster) {
      send(0, words + at, word, arrived);
    } else if (mode == ExchangeMode::last_block) {
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

// An all-gather of the blocks of a row, again and again: each brings a few words, each gets all
// of them. Two sets in turns, so that one round is enough: whoever writes into a set again has
// seen the other set complete, for which all had to have read this one.
class ClusterAllGather {
 public:
  static constexpr int kMembers = 8;
  static constexpr int kWords = 3;  // that a member brings
  struct Memory {
    Word words[2][kMembers][kWords];
    uint64_t arrived[2];  // mbarriers
  };

  __device__ __forceinline__ ClusterAllGather(Memory& memory, int members)
      : memory_(memory), members_(members) {}

  // By one thread, before the cluster meets.
  __device__ __forceinline__ static void open(Memory& memory) {
    for (uint64_t& counter : memory.arrived) expect_one_thread(&counter);
  }

  // All threads bring the same words; what member b brought then lies at [b].
 __device__ __noinline__ const Word (*all_gather(Word first, Word second, Word third)) [kWords] {
   const unsigned set = rounds_ % 2, parity = rounds_ / 2 % 2;
   ++rounds_;
   Word(*words)[kWords] = memory_.words[set];
   __syncthreads();  // all have read what the round before brought
   if (members_ == 1) {
     if (threadIdx.x == 0) put(words[0], first, second, third);
     __syncthreads();
     return words;
   }
   if (threadIdx.x == 0) {
     expect_bytes(&memory_.arrived[set], members_ * kWords * static_cast<int>(sizeof(Word)));
   }
   if (threadIdx.x < members_) {
     const Word* place = words[blockIdx.x];
     send(threadIdx.x, place, first, &memory_.arrived[set]);
     send(threadIdx.x, place + 1, second, &memory_.arrived[set]);
     send(threadIdx.x, place + 2, third, &memory_.arrived[set]);
   }
   while (!complete(&memory_.arrived[set], parity)) {
   }
   return words;
 }

 private : __device__ static void put(Word* place, Word first, Word second, Word third) {
    place[0] = first;
    place[1] = second;
    place[2] = third;
  }

  Memory& memory_;
  int members_;
  unsigned rounds_ = 0;
};

}  // namespace decoding::cuda::selection
