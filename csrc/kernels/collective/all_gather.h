// y[r, first_of(cols, q, n) + c] = x_q[r, c], where x_q is the part of rank q of n: columns that
// the ranks share out among themselves.
#pragma once

#include <cstdint>

#include "kernels/collective/split_stream.h"

namespace decoding {

// The first of `count` that rank `rank` of `ranks` has; part_of() in models/weights/shards.py.
inline int first_of(int count, int rank, int ranks) {
  return static_cast<int>(int64_t{count} * rank / ranks);
}

template <typename T>
struct AllGatherParams {
  T* y;  // [rows, cols]
  int rows, cols;
};

template <typename T, cpu::Isa isa>
void all_gather(cpu::SplitStream<isa>&, const AllGatherParams<T>&);

}  // namespace decoding
