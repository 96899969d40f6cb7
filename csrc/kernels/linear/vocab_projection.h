// The output projection, and the best tokens of each row, chosen while the logits are in cache:
//
//   logits = norm(x) W^T + bias, which are never written
//   lse    = log(sum over outputs of exp(logits))
//   best   = the k largest logits but for those that are banned, the lower token among equals
//
// To the bit what linear, scan_logits, ban_tokens and topk find one after the other. A group of
// outputs is multiplied, added up and searched by one thread. Every thread keeps the k best that it
// has seen of each row: a group whose maximum does not beat the last of them needs no second look,
// and soon few do. In the end the threads' lists become one.
#pragma once

#include <cstdint>

#include "kernels/linear/linear.h"
#include "kernels/search/topk.h"

namespace decoding {

template <typename T>
struct ProjectParams {
  const T* x;                       // [rows, K]
  Norm norm = {};                   // gamma and beta are [K]
  T* normed = nullptr;              // [rows, K], takes norm(x); null without a norm
  LinearWeight weight;              // N outputs, K inputs
  const float* bias = nullptr;      // [N], may be null
  const int32_t* tokens = nullptr;  // [N], ascending, the token of each output; null: its index
  const int32_t* banned = nullptr;  // [banned_count], ascending, outputs that are not chosen
  float* group_max;                 // [rows, G], scratch: G groups of the outputs (logits.h)
  float* group_sum;                 // [rows, G], scratch
  float* lse;                       // [rows]; NaN or +inf exactly where the row holds a NaN or +inf
  Candidate* best;             // [rows, k], best first; {-inf, -1} after the last finite element
  Candidate* thread_best;      // [threads, rows, k], scratch
  uint8_t* scratch = nullptr;  // [linear_scratch(rows, K)]; not for float32
  int rows, k;
  int banned_count = 0;
};

template <typename T, cpu::Isa isa>
void project(cpu::Stream<isa>&, const ProjectParams<T>&);

}  // namespace decoding
