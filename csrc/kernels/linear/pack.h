// Weights on their way to the engine. On the CPU linear ones are converted to the type that they
// are multiplied in, and laid out in panels (linear.h). In int8
//
//   scale[n] = max_k |W[n, k]| / 127, or 1 where that is 0
//   numbers[n, k] = round(W[n, k] / scale[n]), ties to even
//   sums[n] = sum_k numbers[n, k]
#pragma once

#include <atomic>
#include <cstdint>

#include "core/types.h"
#include "kernels/stream.h"

namespace decoding {

struct PackParams {
  const void* rows;  // [n, K] of the type `stored`, which is no int8
  WeightKind stored;
  int64_t count, inputs;  // n and K
  int64_t first;          // the output that row 0 is
  void* panels;  // of the type `kind`, which is no float16, with room for first + n outputs
  WeightKind kind;
  float* scale = nullptr;     // [N] of int8, with sums
  int32_t* sums = nullptr;    // [N]
  std::atomic<bool>* finite;  // becomes false where a number is not finite, in either type
};

// Parts of a weight come in order: the outputs of the last panel behind them are zero until then.
template <cpu::Isa isa>
void pack(cpu::Stream<isa>&, const PackParams&);

// An int8 weight on its way to a GPU: from the CPU's panels to rows, both as in linear.h.
struct InterleaveParams {
  const uint32_t* panels;  // of N outputs and K inputs
  int64_t outputs, inputs;
  int8_t* rows;  // [N, quantized_stride(K)]
};

template <cpu::Isa isa>
void interleave(cpu::Stream<isa>&, const InterleaveParams&);

struct ConvertParams {
  const void* numbers;  // [count] of the type `stored`, which is no int8
  WeightKind stored;
  int64_t count;
  void* to;  // [count] of the type `kind`, which is no int8
  WeightKind kind;
  std::atomic<bool>* finite;  // as above
};

// All other weights, which keep their layout.
template <cpu::Isa isa>
void convert(cpu::Stream<isa>&, const ConvertParams&);

struct SquaresParams {
  const void* rows;  // [n, K]
  WeightKind stored;
  int64_t count, inputs;
  double* length;  // [threads], takes sum_nk W[n, k]^2 of each thread's rows
  double* steps;   // [threads], takes sum_n scale[n]^2
};

template <cpu::Isa isa>
void squares(cpu::Stream<isa>&, const SquaresParams&);

}  // namespace decoding
