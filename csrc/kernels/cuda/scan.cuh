// One pass over a row's logits: of each group of kGroup columns the maximum and the sum of
// exponentials relative to it; then the log-sum-exp of the row. Eight lanes share a group, each
// takes 16 columns of it, in 16-byte pieces. Which lane takes which column, and the order in which
// groups are added up, depend on V alone: not on how a row is split, nor on where it lies in
// memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/block.cuh"
#include "kernels/logits.h"

namespace decoding::cuda::selection {

constexpr int kLanes = 8;                         // that share a group
constexpr int kColumns = kGroup / kLanes;         // of a lane
constexpr int kGroupsAtOnce = kThreads / kLanes;  // by a block

// A row, its groups' maxima and sums in shared memory.
template <typename T>
struct Row {
  T* logits;                     // on 16 bytes
  float *group_max, *group_sum;  // [groups]
  int vocab, groups;
};

__device__ __forceinline__ uint32_t bits_of(half x) { return __half_as_ushort(x); }
__device__ __forceinline__ uint32_t bits_of(bfloat16 x) { return __bfloat16_as_ushort(x); }

// A lane's columns of a group, as they lie in memory.
template <typename T>
struct Columns {
  static constexpr int kWidth = 16 / sizeof(T);
  static constexpr int kPieces = kColumns / kWidth;

  // The lane's column i, counted from the row's begin.
  __device__ __forceinline__ static int column(int group, int i) {
    const int lane = threadIdx.x % kLanes;
    return group * kGroup + (i / kWidth * kLanes + lane) * kWidth + i % kWidth;
  }

  // -inf from `end` on. row: on 16 bytes, as is the next one.
  __device__ __forceinline__ void load(const T* row, int end, int group) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int begin = column(group, p * kWidth);
      pieces[p] = make_uint4(0, 0, 0, 0);
      if (begin < end) pieces[p] = *reinterpret_cast<const uint4*>(row + begin);
      if (begin + kWidth > end) pieces[p] = cut_off(pieces[p], begin, end);
    }
  }

  __device__ __forceinline__ float operator[](int i) const {
    constexpr int in_word = 4 / sizeof(T);
    const uint4 piece = pieces[i / kWidth];
    const int at = i % kWidth / in_word;
    const uint32_t word = at == 0 ? piece.x : at == 1 ? piece.y : at == 2 ? piece.z : piece.w;
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(word);
    } else if constexpr (std::is_same_v<T, half>) {
      return __half2float(__ushort_as_half(word >> 16 * (i % 2)));
    } else {
      return __uint_as_float(i % 2 ? word & 0xFFFF0000u : word << 16);
    }
  }

  uint4 pieces[kPieces];

 private:
  // The columns from `end` on become -inf.
  __device__ __forceinline__ static uint4 cut_off(uint4 piece, int begin, int end) {
    uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      uint32_t& word = words[i * static_cast<int>(sizeof(T)) / 4];
      if (begin + i < end) continue;
      if constexpr (sizeof(T) == 4) {
        word = __float_as_uint(-INFINITY);
      } else {
        const uint32_t none = bits_of(from_float<T>(-INFINITY));
        word = i % 2 ? (word & 0xFFFFu) | none << 16 : (word & 0xFFFF0000u) | none;
      }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
};

// e^x in two instructions; what would be denormal is 0.
__device__ __forceinline__ float fast_exp(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
}

// Of the group that eight neighbouring lanes hold; whole warps call this.
template <typename T>
__device__ __forceinline__ void summarize(const Columns<T>& x, float& max, float& sum) {
  max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) max = fmaxf(max, x[i]);
  max = warp_max<kLanes>(max);
  // -inf - -inf would be NaN; with any other peak, exp(-inf) is the 0 that it should be.
  const float peak = max == -INFINITY ? 0.0f : max;
  sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) sum += fast_exp(x[i] - peak);
  sum = warp_sum<kLanes>(sum);
}

// Groups begin to end - 1 by one block; the next groups are on their way while these are added up.
// next: the first of them.
template <typename T>
__device__ __forceinline__ void scan(Columns<T> next, const T* row, int vocab, int begin, int end,
                                     float* group_max, float* group_sum) {
  int group = begin + threadIdx.x / kLanes;
#pragma unroll 1
  for (int base = begin; base < end; base += kGroupsAtOnce, group += kGroupsAtOnce) {
    const Columns<T> x = next;
    const int after = group + kGroupsAtOnce;
    next.load(row, after < end ? vocab : 0, after);
    float max, sum;
    summarize(x, max, sum);
    if (threadIdx.x % kLanes == 0 && group < end) {
      group_max[group] = max;
      group_sum[group] = sum;
    }
  }
}

// Each thread adds every kThreads-th group; then the threads are added up.
static __device__ __noinline__ float log_sum_exp(const float* group_max, const float* group_sum,
                                                 int groups) {
  float peak = -INFINITY;
#pragma unroll 1
  for (int g = threadIdx.x; g < groups; g += kThreads) peak = fmaxf(peak, group_max[g]);
  peak = value_at(block_max(order_of(peak)));
  if (peak == -INFINITY) peak = 0.0f;
  float sum = 0.0f;
#pragma unroll 1
  for (int g = threadIdx.x; g < groups; g += kThreads) {
    sum += group_sum[g] * __expf(group_max[g] - peak);
  }
  return peak + logf(block_sum(sum));
}

// Calls visitor(value, id) for every element that reaches `low`, a finite number, reading only the
// groups that hold some. A warp takes `batch` groups at a time.
template <int batch, typename T, typename Visitor>
__device__ __forceinline__ void visit(const Row<T>& row, float low, Visitor&& visitor) {
  using Four = Vector<T, kGroup / 32>;
#pragma unroll 1
  for (int base = warp_id(); base < row.groups; base += kThreads) {
    const int mine = base + kWarps * lane_id();
    unsigned reaching = __ballot_sync(kAllLanes, mine < row.groups && row.group_max[mine] >= low);
#pragma unroll 1
    while (reaching != 0) {
      Four four[batch];
      int id[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        id[j] = row.vocab;
        if (reaching != 0) {
          id[j] = (base + kWarps * (__ffs(reaching) - 1)) * kGroup + 4 * lane_id();
          reaching &= reaching - 1;
        }
        // What begins within the row may end behind it, where there is room.
        if (id[j] < row.vocab) four[j] = Four::load(row.logits + id[j]);
      }
#pragma unroll
      for (int j = 0; j < batch; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (id[j] + i < row.vocab && four[j][i] >= low) visitor(four[j][i], id[j] + i);
        }
      }
    }
  }
}

}  // namespace decoding::cuda::selection
