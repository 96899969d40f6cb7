// What both designs of decode attention share: which work is a block's, and how blocks and warps
// meet. The plain one is decode_attention.cu, the one on tensor cores decode_attention_mma.cu.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "kernels/attention.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"

namespace decoding::cuda {

constexpr int kMaxWarps = 8;     // of a block
constexpr int kSplitRows = 256;  // rows of keys that are worth a block of their own

// The part of the work that is this block's. Grid: heads, sentences, splits times chunks of `most`
// beams. What it reads is read before the previous kernel has ended.
struct Share {
  bool exists;
  int head, beam, count;  // beams [beam, beam + count) of the sentence
  int sentence;           // its id
  int64_t row;            // of the first beam, in q, k, v and y
  int chunk, chunks, split, splits;
  int shared_start, shared_length;  // of the sentence
  int own_length;                   // positions of the history, without the newest
  int table;                        // of the slots

  template <typename T>
  __device__ __forceinline__ Share(const DecodeAttentionParams<T>& p, int most) {
    const StepState now = *p.now;
    const int id = p.live[blockIdx.y];  // read at once with `now`
    const bool alive = static_cast<int>(blockIdx.y) < now.live_count;
    sentence = alive ? id : 0;
    head = blockIdx.x;
    chunks = (p.beams + most - 1) / most;
    chunk = blockIdx.z % chunks;
    split = blockIdx.z / chunks;
    beam = chunk * most;
    count = min(most, p.beams - beam);
    row = static_cast<int64_t>(blockIdx.y) * p.beams + beam;
    shared_start = p.shared_k == nullptr ? 0 : p.shared_offsets[sentence];
    shared_length = p.shared_k == nullptr ? 0 : p.shared_offsets[sentence + 1] - shared_start;
    own_length = p.k == nullptr ? 0 : now.position;
    table = now.number % 2;
    const int wanted = (shared_length + own_length * count) / kSplitRows;
    splits = max(1, min(static_cast<int>(gridDim.z) / chunks, wanted));
    exists = alive && split < splits;
  }

  // Of the block's first beam, where blocks leave partial results: [kSplits, beams, dim + 2].
  template <typename T>
  __device__ __forceinline__ float* partial(const DecodeAttentionParams<T>& p) const {
    const int64_t pair = static_cast<int64_t>(blockIdx.y) * p.heads + head;
    return p.partial + (pair * kSplits * p.beams + beam) * (p.head_dim + 2);
  }
  template <typename T>
  __device__ __forceinline__ int32_t* ticket(const DecodeAttentionParams<T>& p) const {
    return p.tickets + (blockIdx.y * p.heads + head) * chunks + chunk;
  }
};

// Few blocks must be quick ones and have many warps; where blocks are many, less is lost in merging
// what warps have found. least: warps that a block needs; bytes(warps): shared memory.
template <typename T, typename Bytes>
void start(Stream& stream, void (*kernel)(DecodeAttentionParams<T>),
           const DecodeAttentionParams<T>& p, int most_beams, int least, Bytes&& bytes) {
  static const int kWarpsPerMultiprocessor =
      getenv("DECODE_WARPS") ? atoi(getenv("DECODE_WARPS")) : 16;
  const int multiprocessors = stream.device().multiprocessors;
  const int chunks = (p.beams + most_beams - 1) / most_beams;
  const int64_t blocks = static_cast<int64_t>(p.sentences) * p.heads * chunks;
  int warps = kMaxWarps;
  while (warps > least && (blocks * warps > kWarpsPerMultiprocessor * multiprocessors ||
                           bytes(warps) > static_cast<size_t>(stream.device().shared_memory))) {
    warps /= 2;
  }
  int splits = 1;
  if (p.partial != nullptr && blocks <= kTickets) {
    const int64_t longest =
        p.shared_capacity + static_cast<int64_t>(p.target) * std::min(p.beams, most_beams);
    const int64_t room = 2 * multiprocessors / blocks;
    splits = std::clamp<int64_t>(std::min(longest / kSplitRows, room), 1, kSplits);
  }
  launch(stream, kernel, dim3(p.heads, p.sentences, chunks * splits), warps * kWarp, bytes(warps),
         p);
}

// A number, 0 where not `valid`. In assembly, since the compiler makes branches of such loads, and
// then each waits for the one before.
__device__ __forceinline__ int32_t load_number(const int32_t* from, bool valid) {
  int32_t number;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n mov.b32 %0, 0;\n @p ld.global.b32 %0, [%1];\n}"
      : "=r"(number)
      : "l"(from), "r"(static_cast<int>(valid))
      : "memory");
  return number;
}

// 16 bytes to shared memory. They go through L1, where beams find what they have in common.
__device__ __forceinline__ void copy16(uint32_t shared_address, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

// A barrier for the first `warps` warps of the block, the only ones that come here.
__device__ __forceinline__ void synchronize(int warps) {
  asm volatile("barrier.sync 1, %0;" ::"r"(warps * static_cast<int>(kWarp)) : "memory");
}

// Whether this warp is the last of `count`, one of each block, to get here; it then sees what the
// others wrote before.
__device__ inline bool last_to_arrive(int32_t* ticket, int count) {
  const bool leads = threadIdx.x % kWarp == 0;
  __threadfence();
  __syncwarp();
  int before = leads ? atomicAdd(ticket, 1) : 0;
  before = __shfl_sync(kAllLanes, before, 0);
  if (before < count - 1) return false;
  if (leads) *ticket = 0;
  __threadfence();
  return true;
}

// Head sizes up to 128 in 2-byte types, everything aligned to 16 bytes.
template <typename T>
void decode_with_tensor_cores(Stream&, const DecodeAttentionParams<T>&);

}  // namespace decoding::cuda
