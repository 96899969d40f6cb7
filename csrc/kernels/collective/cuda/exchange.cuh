// What the threads of one exchange do: send words to other ranks and receive theirs, or write
// numbers to their memory and raise flags behind them.
#pragma once

#include "kernels/cuda/collective.h"
#include "kernels/cuda/launch.cuh"

namespace decoding::cuda {

constexpr int kExchangeThreads = 256;
constexpr int kPatience = 256;  // polls of a word or a flag between two at the host's memory

// The bytes that travel at once, and how many T these are.
constexpr int kUnit = 16;
template <typename T>
constexpr int kUnitSize = kUnit / sizeof(T);

__device__ __forceinline__ uint4 load_unit(const void* from, int64_t unit) {
  return static_cast<const uint4*>(from)[unit];
}

// What other ranks read and write.
__device__ __forceinline__ void store_words(uint64_t* to, uint64_t a, uint64_t b) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(a), "l"(b) : "memory");
}
__device__ __forceinline__ void load_words(const uint64_t* from, uint64_t& a, uint64_t& b) {
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(a), "=l"(b)
               : "l"(from)
               : "memory");
}

__device__ __forceinline__ uint4 load_shared(const void* from, int64_t unit) {
  uint64_t a, b;
  load_words(static_cast<const uint64_t*>(from) + 2 * unit, a, b);
  return {static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32), static_cast<uint32_t>(b),
          static_cast<uint32_t>(b >> 32)};
}
__device__ __forceinline__ void store_shared(void* to, int64_t unit, uint4 numbers) {
  store_words(static_cast<uint64_t*>(to) + 2 * unit, uint64_t{numbers.y} << 32 | numbers.x,
              uint64_t{numbers.w} << 32 | numbers.z);
}

class Exchange {
 public:
  // After wait_for_previous().
  __device__ explicit Exchange(const Peers& peers) : peers_(peers) {
    number_ = static_cast<volatile uint32_t*>(peers.counts)[blockIdx.x] + 1;
    if (number_ == 0) number_ = 2;  // of memory that nobody has written; even, as this would be
  }

  // Unit `unit` of this rank's part, to all others.
  __device__ void send(int64_t unit, uint4 numbers) const {
    for (int i = 1; i < peers_.size; ++i) {
      uint64_t* to = words((peers_.rank + i) % peers_.size, peers_.rank, unit);
      store_words(to, word(numbers.x), word(numbers.y));
      store_words(to + 2, word(numbers.z), word(numbers.w));
    }
  }

  // That of rank `from`, once it is there.
  __device__ uint4 receive(int from, int64_t unit) const {
    const uint64_t* at = words(peers_.rank, from, unit);
    uint64_t a, b, c, d;
    await([&] {
      load_words(at, a, b);
      load_words(at + 2, c, d);
      return is_new(a) && is_new(b) && is_new(c) && is_new(d);
    });
    return {number_of(a), number_of(b), number_of(c), number_of(d)};
  }

  // Where this rank writes for rank `to`, and where it reads what rank `from` has written.
  __device__ std::byte* at_other(int to) const {
    return peers_.numbers(to, peers_.rank, number_ & 1);
  }
  __device__ const std::byte* from_other(int from) const {
    return peers_.numbers(peers_.rank, from, number_ & 1);
  }

  // All threads of a block: waits until the same block of every other rank has come here, so that
  // what it wrote before is there. phase: 0 or 1, of several meetings in one exchange.
  __device__ void meet(int phase) const {
    __syncthreads();
    const int other = threadIdx.x, flag = phase * kMostBlocks + blockIdx.x;
    if (other < peers_.size && other != peers_.rank) {
      asm volatile(
          "st.release.sys.global.u32 [%0], %1;" ::"l"(peers_.flags(other, peers_.rank) + flag),
          "r"(number_)
          : "memory");
      const uint32_t* own = peers_.flags(peers_.rank, other) + flag;
      await([&] {
        uint32_t number;
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(number) : "l"(own) : "memory");
        return static_cast<int32_t>(number - number_) >= 0;  // it may be one exchange ahead
      });
    }
    __syncthreads();
  }

  // All threads of all blocks, at the end. Each block counts for itself, and for some of those that
  // this exchange does not have.
  __device__ void leave() const {
    __syncthreads();  // all threads know the number
    const int block = blockIdx.x + threadIdx.x * gridDim.x;
    if (block < kMostBlocks) peers_.counts[block] = number_;
  }

 private:
  __device__ uint64_t* words(int to, int from, int64_t unit) const {
    return reinterpret_cast<uint64_t*>(peers_.words(to, from, number_ & 1)) + 4 * unit;
  }
  __device__ uint64_t word(uint32_t numbers) const { return uint64_t{number_} << 32 | numbers; }
  __device__ bool is_new(uint64_t word) const { return word >> 32 == number_; }
  __device__ static uint32_t number_of(uint64_t word) { return static_cast<uint32_t>(word); }

  template <typename Arrived>
  __device__ void await(Arrived&& arrived) const {
    for (int polls = 1; !arrived(); ++polls) {
      if (polls % kPatience != 0 || *static_cast<const volatile uint32_t*>(peers_.stop) == 0) {
        continue;
      }
      *static_cast<volatile uint32_t*>(peers_.given_up) = 1;
      return;
    }
  }

  const Peers& peers_;
  uint32_t number_;
};

// Calls work(unit) for this thread's share of `count` units.
template <typename Work>
__device__ __forceinline__ void for_units(int64_t count, Work&& work) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t unit = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; unit < count; unit += step) {
    work(unit);
  }
}

// Blocks that all run at once, since they wait for those of other ranks.
inline dim3 exchange_grid(const Device& device, int64_t units) {
  const int64_t blocks = (units + kExchangeThreads - 1) / kExchangeThreads;
  const int64_t most = std::min(device.multiprocessors, kMostBlocks);
  return dim3(static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, most)));
}

}  // namespace decoding::cuda
