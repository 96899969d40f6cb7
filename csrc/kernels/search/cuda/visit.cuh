// What a row's scan leaves for later: the elements that reach a bound, of which the groups' maxima
// tell where they are.
#pragma once

#include "kernels/search/cuda/scan.cuh"

namespace decoding::cuda::selection {

// A lane's part of a group that is read again.
template <typename T>
using Four = Vector<T, kGroup / 32>;

// Calls use(fours, ids) for the groups that hold something that reaches `low`, a finite number; a
// warp reads `batch` of them at a time. An id from the vocabulary's end on stands for none.
template <int batch, typename T, typename Use>
__device__ __forceinline__ void read_again(const Row<T>& row, float low, Use&& use) {
#pragma unroll 1
  for (int base = row.begin + warp_id(); base < row.end; base += kThreads) {
    const int mine = base + kWarps * lane_id();
    unsigned reaching = __ballot_sync(kAllLanes, mine < row.end && row.group_max[mine] >= low);
#pragma unroll 1
    while (reaching != 0) {
      Four<T> four[batch];
      int id[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        id[j] = row.vocab;
        if (reaching != 0) {
          id[j] = (base + kWarps * (__ffs(reaching) - 1)) * kGroup + 4 * lane_id();
          reaching &= reaching - 1;
        }
        // What begins within the row may end behind it, where there is room.
        if (id[j] < row.vocab) four[j] = Four<T>::load(row.logits + id[j]);
      }
      use(four, id);
    }
  }
}

// Calls visitor(value, id) for every element that reaches `low`.
template <int batch, typename T, typename Visitor>
__device__ __forceinline__ void visit(const Row<T>& row, float low, Visitor&& visitor) {
  read_again<batch>(row, low, [&](const Four<T>(&four)[batch], const int (&id)[batch]) {
#pragma unroll
    for (int j = 0; j < batch; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (id[j] + i < row.vocab && four[j][i] >= low) visitor(four[j][i], id[j] + i);
      }
    }
  });
}

// The same where few do: the visitor is there once, and lanes that found something in different
// places visit it side by side.
template <typename T, typename Visitor>
__device__ __forceinline__ void visit_few(const Row<T>& row, float low, Visitor&& visitor) {
  constexpr int batch = 4;
  read_again<batch>(row, low, [&](const Four<T>(&four)[batch], const int (&id)[batch]) {
    unsigned reaching = 0;
#pragma unroll
    for (int at = 0; at < 4 * batch; ++at) {
      const bool reaches = id[at / 4] + at % 4 < row.vocab && four[at / 4][at % 4] >= low;
      reaching |= static_cast<unsigned>(reaches) << at;
    }
#pragma unroll 1
    for (; reaching != 0; reaching &= reaching - 1) {
      const int at = __ffs(reaching) - 1;
      int first = id[0];
#pragma unroll
      for (int j = 1; j < batch; ++j) first = at >= 4 * j ? id[j] : first;
      visitor(to_float(row.logits[first + at % 4]), first + at % 4);
    }
  });
}

}  // namespace decoding::cuda::selection
