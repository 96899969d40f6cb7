// y[r, first_of(cols, q, n) + c] = x_q[r, c], where x_q is the part of rank q of n: columns that
// the ranks share out among themselves.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "kernels/collective/split_stream.h"

namespace decoding {

// The first of `count` that rank `rank` of `ranks` has; part_of() in models/weights/shards.py.
DECODING_EVERYWHERE inline int first_of(int count, int rank, int ranks) {
  return static_cast<int>(int64_t{count} * rank / ranks);
}

// A part has rows of first_of(cols, q + 1, n) - first_of(cols, q, n) numbers, on CUDA on multiples
// of kRowAlignment of its collective.
template <typename T>
struct AllGatherParams {
  T* y;  // [rows, cols], rows `stride` apart
  int rows, cols, stride;
};

template <typename T, cpu::Isa isa>
void all_gather(cpu::SplitStream<isa>&, const AllGatherParams<T>&);
template <typename T>
void all_gather(cuda::SplitStream&, const AllGatherParams<T>&);

}  // namespace decoding
