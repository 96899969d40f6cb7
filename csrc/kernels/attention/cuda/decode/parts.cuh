// Parts of a step (decode.h) that one launch takes: a block finds the part that its row belongs to.
// Each launch is a dependent one, which costs more than the work of a few rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/decode.h"

namespace decoding::cuda {

template <typename T, typename C = T>
struct AttentionParts {
  DecodeAttentionParams<T, C> parts[kMostParts];
  int ends[kMostParts];  // of their rows, all counted
  int count = 0;

  void add(const DecodeAttentionParams<T, C>& p) {
    ends[count] = (count == 0 ? 0 : ends[count - 1]) + p.sentences * p.beams;
    parts[count++] = p;
  }
};
static_assert(sizeof(AttentionParts<float>) <= 4096);  // what a kernel may be given everywhere

template <typename Params>
constexpr bool kSeveralParts = false;
template <typename T, typename C>
constexpr bool kSeveralParts<AttentionParts<T, C>> = true;

template <typename T, typename C>
const DecodeAttentionParams<T, C>& first_part(const DecodeAttentionParams<T, C>& p) {
  return p;
}
template <typename T, typename C>
const DecodeAttentionParams<T, C>& first_part(const AttentionParts<T, C>& parts) {
  return parts.parts[0];
}

template <typename T, typename C>
int rows_of(const DecodeAttentionParams<T, C>& p) {
  return p.sentences * p.beams;
}
template <typename T, typename C>
int rows_of(const AttentionParts<T, C>& parts) {
  return parts.ends[parts.count - 1];
}

// Positions that a sentence may share.
template <typename T, typename C>
int64_t most_shared(const DecodeAttentionParams<T, C>& p) {
  return int64_t{kPageSize} * p.shared_pages.longest;
}

// Positions that a block of so many beams reads, at most.
template <typename T, typename C>
int64_t longest_of(const DecodeAttentionParams<T, C>& p, int beams) {
  return most_shared(p) + int64_t{p.target} * beams;
}
template <typename T, typename C>
int64_t longest_of(const AttentionParts<T, C>& parts, int beams) {
  int64_t longest = 0;
  for (int i = 0; i < parts.count; ++i) {
    longest = std::max(longest, longest_of(parts.parts[i], beams));
  }
  return longest;
}

// The part of a block, and which of its rows (or sentences) the block is for.
template <typename T, typename C>
struct BlockPart {
  const DecodeAttentionParams<T, C>& params;
  int y;
};

template <typename T, typename C>
__device__ __forceinline__ BlockPart<T, C> part_of_block(const DecodeAttentionParams<T, C>& p) {
  return {p, static_cast<int>(blockIdx.y)};
}
template <typename T, typename C>
__device__ __forceinline__ BlockPart<T, C> part_of_block(const AttentionParts<T, C>& parts) {
  const int row = blockIdx.y;
  int i = 0, first = 0;
  while (row >= parts.ends[i]) first = parts.ends[i++];
  return {parts.parts[i], row - first};
}

}  // namespace decoding::cuda
