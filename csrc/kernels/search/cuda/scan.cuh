// One pass over a row's logits: of each group of kGroup columns the maximum, of each four groups
// (kQuad) the sum of exponentials relative to their maximum; and from those the log-sum-exp of the
// row. Eight lanes share a group, so a warp has four at a time; each lane takes 16 columns of its
// group, in 16-byte pieces. Which lane takes which column, and the order in which numbers are added
// up, depend on V alone: not on how a row is split, nor on where it lies in memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/search/cuda/cluster_exchange.cuh"
#include "kernels/search/logits.h"

namespace decoding::cuda::selection {

constexpr int kLanes = 8;                         // that share a group
constexpr int kColumns = kGroup / kLanes;         // of a lane
constexpr int kGroupsAtOnce = kThreads / kLanes;  // by a block
constexpr int kQuad = 32 / kLanes;                // groups that a warp adds up

// A block's share of a row: groups begin to end - 1, both of them multiples of kQuad, so that there
// may be empty groups behind the last column.
template <typename T>
struct Row {
  T* logits;         // on 16 bytes
  float* group_max;  // of every group of the row, in shared memory
  int vocab, begin, end;

  __device__ __forceinline__ bool has(int group) const { return begin <= group && group < end; }
};

__device__ __forceinline__ uint32_t bits_of(half x) { return __half_as_ushort(x); }
__device__ __forceinline__ uint32_t bits_of(bfloat16 x) { return __bfloat16_as_ushort(x); }

// What a 32-bit word holds of a row.
template <typename T>
using Parts =
    std::conditional_t<sizeof(T) == 4, float,
                       std::conditional_t<std::is_same_v<T, half>, half2, __nv_bfloat162>>;
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ half2 larger(half2 a, half2 b) { return __hmax2(a, b); }
__device__ __forceinline__ __nv_bfloat162 larger(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __hmax2(a, b);
}

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

  // What begins before `end`. row: on 16 bytes, as is the next one.
  __device__ __forceinline__ void load(const T* row, int end, int group) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int begin = column(group, p * kWidth);
      pieces[p] = make_uint4(0, 0, 0, 0);
      if (begin < end) pieces[p] = *reinterpret_cast<const uint4*>(row + begin);
    }
  }

  // From `end` on, numbers become -inf. Apart from load(), which need not wait for them.
  __device__ __forceinline__ void cut(int end, int group) {
    if ((group + 1) * kGroup <= end) return;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      pieces[p] = cut_off(pieces[p], column(group, p * kWidth), end);
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

  // The largest number of each part that a word has room for; a NaN counts for nothing.
  __device__ __forceinline__ Parts<T> largest_parts() const {
    Parts<T> x = *reinterpret_cast<const Parts<T>*>(&pieces[0].x);
#pragma unroll
    for (const uint4& piece : pieces) {
      const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
      for (const uint32_t& word : words) x = larger(x, *reinterpret_cast<const Parts<T>*>(&word));
    }
    return x;
  }
  __device__ __forceinline__ float largest() const {
    const Parts<T> x = largest_parts();
    if constexpr (sizeof(T) == 4) {
      return x;
    } else {
      return fmaxf(to_float(x.x), to_float(x.y));
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

// The larger of neighbouring lanes: of groups of `from` lanes those of `to` lanes.
template <int from, int to, typename X>
__device__ __forceinline__ X over_lanes(X x) {
#pragma unroll
  for (int other = from; other < to; other *= 2) {
    x = larger(x, __shfl_xor_sync(kAllLanes, x, other));
  }
  return x;
}

// A lane's part of what exp(x) adds up to, relative to `max`.
template <typename T>
__device__ __forceinline__ float lane_sum(const Columns<T>& x, float max) {
  // -inf - -inf would be NaN; with any other peak, exp(-inf) is the 0 that it should be.
  const float peak = max == -INFINITY ? 0.0f : max;
  float sums[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < kColumns; ++i) sums[i % 2] += fast_exp(x[i] - peak);
  return sums[0] + sums[1];
}

// exp(x) summed over the four groups that a warp holds, relative to their maximum.
template <typename T>
__device__ __forceinline__ Word sum_of_quad(const Columns<T>& x, float group_max) {
  const float max = over_lanes<kLanes, 32>(group_max);
  return pair(max, warp_sum(lane_sum(x, max)));
}

// What a warp has of a row at once: in half precision enough to work on two quads side by side.
template <typename T>
struct Batch {
  static constexpr int kRounds = 4 / sizeof(T);
  static constexpr int kGroups = kRounds * kGroupsAtOnce;  // of a block

  // The group of this thread in a round.
  __device__ __forceinline__ static int group(int base, int round) {
    return base + round * kGroupsAtOnce + static_cast<int>(threadIdx.x) / kLanes;
  }

  // The groups from `base` on.
  __device__ __forceinline__ void load(const Row<T>& row, int base) {
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int g = group(base, r);
      rounds[r].load(row.logits, g < row.end ? row.vocab : 0, g);
    }
  }

  // The largest numbers of the lane's columns, of each round's a part.
  __device__ __forceinline__ Parts<T> largest() const {
    if constexpr (kRounds == 1) {
      return rounds[0].largest_parts();
    } else {
      const Parts<T> a = rounds[0].largest_parts(), b = rounds[1].largest_parts();
      return larger(Parts<T>(a.x, b.x), Parts<T>(a.y, b.y));
    }
  }

  Columns<T> rounds[kRounds];
};

// One of the parts.
__device__ __forceinline__ float part(float x, int) { return x; }
template <typename Two>
__device__ __forceinline__ float part(Two x, int i) {
  return to_float(i == 0 ? x.x : x.y);
}

// As warp_sum() of one number or of two, side by side: the upper half of the lanes gets the second.
__device__ __forceinline__ float warp_sums(const float (&x)[1]) { return warp_sum(x[0]); }
__device__ __forceinline__ float warp_sums(const float (&x)[2]) {
  const bool upper = lane_id() >= 16;
  const float other = __shfl_xor_sync(kAllLanes, upper ? x[0] : x[1], 16);
  return warp_sum<16>((upper ? x[1] : x[0]) + other);
}

// now, next: the first two batches, which are under way; later ones follow as these are done with.
template <typename T>
__device__ __forceinline__ void scan(Batch<T> now, Batch<T> next, const Row<T>& row,
                                     const ClusterExchange& exchange) {
#pragma unroll 1
  for (int base = row.begin; base < row.end; base += Batch<T>::kGroups) {
    constexpr int rounds = Batch<T>::kRounds;
#pragma unroll
    for (int r = 0; r < rounds; ++r) now.rounds[r].cut(row.vocab, Batch<T>::group(base, r));
    const Parts<T> groups = over_lanes<1, kLanes>(now.largest());
    const Parts<T> quads = over_lanes<kLanes, 32>(groups);
    float sums[rounds];
#pragma unroll
    for (int r = 0; r < rounds; ++r) sums[r] = lane_sum(now.rounds[r], part(quads, r));
    const float sum = warp_sums(sums);
#pragma unroll
    for (int r = 0; r < rounds; ++r) {
      const int group = Batch<T>::group(base, r);
      if (threadIdx.x % kLanes == 0 && group < row.end) row.group_max[group] = part(groups, r);
    }
    const int mine = lane_id() * rounds / 32, group = Batch<T>::group(base, mine);
    if (lane_id() % (32 / rounds) == 0 && group < row.end) {
      exchange.put(group / kQuad, pair(part(quads, mine), sum));
    }
    now = next;
    next.load(row, base + 2 * Batch<T>::kGroups);
  }
}

// Of a row from its quads' sums; a warp calls this. Each lane adds up every 32nd, then the lanes
// are added up.
static __device__ __noinline__ float log_sum_exp(const Word* sums, int quads) {
  float peak = -INFINITY, sum = 0.0f;
#pragma unroll 2
  for (int q = lane_id(); q < quads; q += 32) {
    const Word more = sums[q];
    const float max = fmaxf(peak, first_of(more));
    // Of two -inf, neither has anything to add; a NaN in the sum stays.
    const float known = peak == max ? 1.0f : __expf(peak - max);
    const float scale = first_of(more) == max ? 1.0f : __expf(first_of(more) - max);
    sum = sum * known + second_of(more) * scale;
    peak = max;
  }
  const float all = value_at(__reduce_max_sync(kAllLanes, order_of(peak)));
  sum *= peak == all ? 1.0f : __expf(peak - all);
  return (all == -INFINITY ? 0.0f : all) + logf(warp_sum(sum));
}

}  // namespace decoding::cuda::selection
