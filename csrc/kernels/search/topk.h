// The k best of every row, exactly, reading little more than the groups that hold them.
//
// Let R be the k-th largest group maximum. k groups have a maximum >= R, so at least k elements are
// >= R; hence the k best all are, and groups whose maximum is below R hold none of them. Only the
// others are read again, and what reaches R is queued and sorted. (LightSeq's hierarchical top-k
// takes the smallest of k group maxima; this bound is the tightest that the maxima prove.)
#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace decoding {

// A queued element; queues are planned per thread, [V] each.
struct Candidate {
  float value;
  int32_t id;
};

// Higher values first, the lower id among equals.
inline bool better(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

template <typename T>
struct TopKParams {
  const T* logits;         // [rows, V]
  const float* group_max;  // [rows, G]
  Candidate* best;         // [rows, k], best first; {-inf, -1} behind the last finite element
  Candidate* queue;        // [threads, V], scratch
  float* maxima;           // [threads, G], scratch
  int rows, vocab, k;
};

template <typename T, cpu::Isa isa>
void topk(cpu::Stream<isa>&, const TopKParams<T>&);

}  // namespace decoding
