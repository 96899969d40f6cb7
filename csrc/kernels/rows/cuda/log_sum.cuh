// An online log-sum-exp (Milakov and Gimelshein 2018). A row is a team's: a part of a warp, a warp,
// a block, or a cluster. Each thread goes through its columns once, 16 bytes at a time and a few
// loads ahead, and keeps their maximum and their sum relative to it; then the team's are put
// together.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/exponential.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/rows/cuda/row_packed.cuh"
#include "kernels/rows/cuda/row_team.cuh"

namespace decoding::cuda {

constexpr int kRowThreads = 256;  // of a block
constexpr int kAhead = 4;         // loads under way

// A row as it is gone through: a few columns up to the first that lies on 16 bytes, packs of 16
// bytes, and the few that remain.
template <typename T>
struct Pieces {
  static constexpr int kPack = 16 / sizeof(T);
  using Pack = Packed<T, kPack>;
  int head, packs, loose;  // loose: columns in no pack

  // packed: without, all columns are loose.
  __device__ __forceinline__ Pieces(const T* row, int cols, bool packed = true) {
    const auto address = reinterpret_cast<uintptr_t>(row);
    head = min(static_cast<int>(-address % 16 / sizeof(T)), cols);
    packs = packed ? (cols - head) / kPack : 0;
    loose = cols - packs * kPack;
  }
  __device__ __forceinline__ int col(int pack) const { return head + pack * kPack; }
  __device__ __forceinline__ int loose_col(int i) const { return i < head ? i : i + packs * kPack; }
};

// The larger of each pair at once, where numbers come in pairs; NaN is passed over.
template <typename T, int count>
__device__ __forceinline__ float largest(const Packed<T, count>& pack) {
  if constexpr (sizeof(T) == 2) {
    using Pair = typename PairOf<T>::Type;
    const auto pair = [](const uint32_t& word) { return reinterpret_cast<const Pair&>(word); };
    const float2 top = unpack(__hmax2(__hmax2(pair(pack.words.x), pair(pack.words.y)),
                                      __hmax2(pair(pack.words.z), pair(pack.words.w))));
    return fmaxf(top.x, top.y);
  } else {
    return fmaxf(fmaxf(pack.words.x, pack.words.y), fmaxf(pack.words.z, pack.words.w));
  }
}

template <typename T>
struct LogSum {
  float peak = kNoScore;
  float sum = 0.0f;  // of exp(x - peak)

  // Makes the sum one relative to `top`, which is not below the peak.
  __device__ __forceinline__ void raise(float top) {
    sum *= exponential<T>(peak - reference(top));
    peak = top;
  }
  template <int count>
  __device__ __forceinline__ void add(const float (&x)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i) sum += exponential<T>(x[i] - reference(peak));
  }
};

// The columns of one thread of a team; also(col, x) is called for each piece of them.
template <typename T, typename Also>
__device__ __forceinline__ LogSum<T> own_log_sum(const T* row, int cols, int rank, int size,
                                                 Also&& also) {
  using Pack = typename Pieces<T>::Pack;
  constexpr int kPack = Pieces<T>::kPack;
  const Pieces<T> pieces(row, cols);
  LogSum<T> found;
  for (int first = rank; first < pieces.packs; first += kAhead * size) {
    Pack loaded[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = first + a * size;
      if (i < pieces.packs) loaded[a] = Pack::load(row + pieces.col(i));
    }
    float top = found.peak;
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (first + a * size < pieces.packs) top = fmaxf(top, largest(loaded[a]));
    }
    found.raise(top);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = first + a * size;
      if (i >= pieces.packs) break;
      float x[kPack];
      loaded[a].unpack(x);
      found.add(x);
      also(pieces.col(i), x);
    }
  }
  for (int i = rank; i < pieces.loose; i += size) {
    const int c = pieces.loose_col(i);
    const float x[1] = {to_float(row[c])};
    found.raise(fmaxf(found.peak, x[0]));
    found.add(x);
    also(c, x);
  }
  return found;
}

// Puts the parts of a team together.
template <typename T, typename Team>
__device__ __forceinline__ LogSum<T> joined(Team& team, LogSum<T> part) {
  float top[1] = {part.peak};
  team.template reduce<Max>(top);
  part.raise(top[0]);
  float sum[1] = {part.sum};
  team.template reduce<Sum>(sum);
  return {top[0], sum[0]};
}

// The teams of a kernel's threads.
template <int lanes>
struct Lanes {
  using Team = LaneTeam<lanes>;
  static constexpr int kCluster = 1;
  static constexpr int kRows = kRowThreads / lanes;  // of a block
  __device__ __forceinline__ static Team make() { return {}; }
};
template <int cluster>
struct Blocks {
  using Team = BlockTeam<cluster>;
  static constexpr int kCluster = cluster;
  static constexpr int kRows = 1;
  __device__ __forceinline__ static Team make() {
    __shared__ typename Team::Partials found;
    return Team(found);
  }
};

// Calls use(makes) for the teams that suit rows of `cols` numbers of T: columns alone choose them.
template <typename T, typename Use>
void with_row_teams(int cols, Use&& use) {
  const int pieces = cols / Pieces<T>::kPack;
  if (pieces <= 32) return use(Lanes<8>{});
  if (pieces <= 256) return use(Lanes<32>{});
  use(Blocks<1>{});
}

}  // namespace decoding::cuda
