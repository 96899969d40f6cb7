// y = activation(norm(x) W^T + bias) + residual, the norm only where it is given.
//
// The norm is part of the contract because of its cost: on CUDA a launch of its own takes longer
// than its work, so a product of few rows norms them as it loads them. Where that does not pay, it
// is a kernel of its own; either way norm(x) is left in `normed`, where post-norm models find their
// residual.
//
// A gated product (feed-forward's, Shazeer 2020) has twice the outputs, a gate's N / 2 and then as
// many of what passes through it:
//   y = activation(g) * u with [g, u] = norm(x) W^T + bias
// On CUDA products of few rows take the gate along too, for the same reason. On the CPU, where two
// panels' sums would not stay in the first-level cache together, and elsewhere it is a pass of its
// own (glu.h) over `gated`.
//
// W is [N, K]. On CUDA it lies as published; a quantized one (int8, e4m3) with rows of
// quantized_stride(K) bytes, zero after K, where of every 16 inputs the first eight and the last
// alternate in pairs, as tensor cores want them: 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15. On the CPU
// it is packed once, at load: panels of kPanel outputs, each [ceil(K / g), kPanel, g], zero after N
// and K, where g inputs take 4 bytes; so a product of few rows reads every weight once, in order.
// The order in which a sum over K is added up there depends on K alone, never on the number of
// rows: a row's result never depends on its neighbours.
//
// On CUDA x and y are of T, and so is W, or quantized beside a T of 16 bits: then
//
//   y[r, n] = scale[n] * sum over k of x[r, k] W_q[n, k]
//
// On CUDA a product of many rows can be W8A8, int8 on both sides: behind a norm x is rounded, and
// an activation, with its gate, rounds y for the next product, which then has no other x:
//
//   y[r, n] = x_scale[r] * scale[n] * sum over k of x_q[r, k] W_q[n, k]
//
// On the CPU x and y are float32 whatever the kind of W. In bfloat16 x is rounded to bfloat16 where
// the machine multiplies that (avx512_bf16, neon_bf16). In int8
//
//   y[r, n] ~ a / 127 * scale[n] * sum over k of q[r, k] W_q[n, k]
//   a = max |x[r]|, q = round(127 x / a), ties to even
//
// where the sums are exact, so all machines find the same; a row that holds NaN or infinity is NaN.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/types.h"
#include "kernels/stream.h"

namespace decoding {

constexpr int kPanel = 64;  // outputs in a panel

// g: the inputs of an output that lie together in a panel.
constexpr int panel_group(WeightKind kind) {
  switch (kind) {
    case WeightKind::float32:
      return 1;
    case WeightKind::int8:
      return 4;
    default:
      return 2;
  }
}

// Bytes of a row of a quantized weight on CUDA.
DECODING_EVERYWHERE constexpr int quantized_stride(int inputs) { return (inputs + 15) / 16 * 16; }

// The shape that Python gives the panels: lines of 256 bytes.
inline std::vector<int64_t> panel_shape(int64_t outputs, int64_t inputs, WeightKind kind) {
  const int64_t group = panel_group(kind);
  return {(outputs + kPanel - 1) / kPanel, (inputs + group - 1) / group, kPanel * group};
}

// Bytes of scratch for the rows of a product on the CPU, as it multiplies them: many take turns.
constexpr int kScratchRows = 384;
inline int64_t linear_scratch(int64_t rows, int64_t inputs) {
  return std::min<int64_t>(rows, kScratchRows) * ((inputs + 15) / 16 * 64 + 64);
}

// Whether a product of so many rows can be W8A8, and is faster than in 16 bits.
constexpr int kFewestQuantized = 512, kMostQuantizedInputs = 16384;
inline bool can_quantize(const LinearWeight& weight, int rows) {
  return rows >= kFewestQuantized && weight.kind == WeightKind::int8 && weight.outputs % 32 == 0 &&
         weight.inputs % 16 == 0 && weight.inputs <= kMostQuantizedInputs;
}

template <typename T>
struct LinearParams {
  const T* x;                   // [rows, K]
  Norm norm = {};               // gamma and beta are [K]
  T* normed = nullptr;          // [rows, K], takes norm(x); null without a norm
  LinearWeight weight;          // N outputs, K inputs
  const float* bias = nullptr;  // [N], may be null
  const T* residual = nullptr;  // [rows, N], may be null
  T* y;                         // [rows, N], may alias residual where activation is none; not x
  T* gated = nullptr;  // [rows, N], scratch of a gated product, whose y is [rows, N / 2] and
                       // has no residual; null: not gated
  // CUDA, beside int8 weights for which can_quantize(): takes norm(x), or has it if x is null.
  QuantizedRows quantized = {};
  bool quantizes_y = false;    // with it: it takes activation(...) in the end, y is scratch
  uint8_t* scratch = nullptr;  // CPU: [linear_scratch(rows, K)]; not for float32
  int rows;
  Activation activation = Activation::none;
  int stride = 0;  // CUDA: elements between rows of y, 0: N; without residual and gate
};

template <typename T, cpu::Isa isa>
void linear(cpu::Stream<isa>&, const LinearParams<T>&);
template <typename T>
void linear(cuda::Stream&, const LinearParams<T>&);

}  // namespace decoding
