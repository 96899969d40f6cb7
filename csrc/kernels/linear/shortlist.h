// A shortlist of the vocabulary: the only tokens that a call's steps choose from, as if the logits
// of all others were -inf. Their outputs are gathered once, into a weight of their own:
//
//   gather_outputs   W'[i] = W[tokens[i]], and the same for scale, sums and bias
//   spread_logits    y[tokens[i]] = x[i], -inf elsewhere, where something asks for all logits
#pragma once

#include <cstdint>

#include "kernels/linear/linear.h"

namespace decoding {

// Null where the kind of weight, or the model, has none.
struct GatherOutputsParams {
  LinearWeight weight;    // N outputs, K inputs, in panels
  const float* bias;      // [N]
  const int32_t* tokens;  // [count]
  uint32_t* panels;       // [ceil(count / kPanel), ceil(K / g), kPanel], g inputs in each
  float* scale;           // [count]
  int32_t* sums;          // [count]
  float* bias_gathered;   // [count]
  int count;
};

template <cpu::Isa isa>
void gather_outputs(cpu::Stream<isa>&, const GatherOutputsParams&);

struct SpreadLogitsParams {
  const float* x;         // [rows, count]
  const int32_t* tokens;  // [count], ascending
  float* y;               // [rows, V]
  int rows, count, vocab;
};

template <cpu::Isa isa>
void spread_logits(cpu::Stream<isa>&, const SpreadLogitsParams&);

}  // namespace decoding
