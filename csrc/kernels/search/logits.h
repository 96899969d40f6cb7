// One pass over the logits: the maximum of each group of kGroup columns and the sum of exponentials
// relative to it, then the log-sum-exp of the row. The bounds of the groups and the order in which
// they are added depend on V alone, so nothing depends on how rows are shared out.
#pragma once

#include <cstdint>

#include "kernels/search/config.h"
#include "kernels/search/step.h"
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

// What bans and forced tokens leave of each row, by its sentence's config, in this order:
//
//   banned tokens, and EOS up to step min_new   their logits become -inf; lse keeps the value of
//                                               the whole row: beam search does not redistribute
//                                               what is banned
//   forced tokens of step 1 and the last step   their logits and the row's lse become 0, all others
//                                               -inf
//   renormalize                                 lse becomes that of what is left, so that
//                                               probabilities add up to 1 again
//
// Groups that change are scanned again. A row whose lse is not finite keeps that, as does one of
// which nothing is left.
template <typename T>
struct ConstrainLogitsParams {
  T* logits;         // [rows, V]
  float* group_max;  // [rows, G]
  float* group_sum;  // [rows, G]
  float* lse;        // [rows]
  ConfigView config;
  const StepState* state;        // rows = active_count * beams
  const ActiveSentence* active;  // [active_count]
  int beams, vocab;
};

template <typename T, cpu::Isa isa>
void constrain_logits(cpu::Stream<isa>&, const ConstrainLogitsParams<T>&);

}  // namespace decoding
