// One pass over the logits: the maximum of each group of kGroup columns and the sum of exponentials
// relative to it, then the log-sum-exp of the row. The bounds of the groups and the order in which
// they are added depend on V alone, so nothing depends on how rows are shared out.
#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace decoding {

constexpr int kGroup = 128;  // columns in a group

inline int groups_of(int vocab) { return (vocab + kGroup - 1) / kGroup; }

template <typename T>
struct ScanLogitsParams {
  const T* logits;   // [rows, V]
  float* group_max;  // [rows, G]
  float* group_sum;  // [rows, G], of exp(x - group_max); 0 where the whole group is -inf
  float* lse;  // [rows]; NaN or +inf exactly where the row holds a NaN or +inf; null: unwanted
  int rows, vocab;
};

template <typename T, cpu::Isa isa>
void scan_logits(cpu::Stream<isa>&, const ScanLogitsParams<T>&);

// Takes tokens out: their logits become -inf, and their groups are summed up again. `lse` keeps the
// value of the unmasked row: beam search does not redistribute what is banned.
template <typename T>
struct BanTokensParams {
  T* logits;           // [rows, V]
  float* group_max;    // [rows, G]
  float* group_sum;    // [rows, G]
  const int32_t* ids;  // [count], the same for every row
  int rows, vocab, count;
};

template <typename T, cpu::Isa isa>
void ban_tokens(cpu::Stream<isa>&, const BanTokensParams<T>&);

// Leaves nothing but the given tokens, each with log-probability 0: their logits and the row's lse
// become 0, all other logits -inf. A row whose lse is not finite keeps that.
template <typename T>
struct ForceTokensParams {
  T* logits;           // [rows, V]
  float* group_max;    // [rows, G]
  float* group_sum;    // [rows, G]
  float* lse;          // [rows]
  const int32_t* ids;  // [count], the same for every row
  int rows, vocab, count;
};

template <typename T, cpu::Isa isa>
void force_tokens(cpu::Stream<isa>&, const ForceTokensParams<T>&);

// The log-sum-exp of what bans and forced tokens have left, so that probabilities add up to 1
// again. A row keeps its lse where that is not finite, or where nothing is left.
struct RenormalizeParams {
  const float* group_max;  // [rows, G]
  const float* group_sum;  // [rows, G]
  float* lse;              // [rows]
  int rows, vocab;
};

template <cpu::Isa isa>
void renormalize(cpu::Stream<isa>&, const RenormalizeParams&);

}  // namespace decoding
