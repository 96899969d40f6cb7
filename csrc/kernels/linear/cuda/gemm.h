// Our own kernels for products of up to some hundred rows, of weights in 16 bits or quantized:
// y = activation(norm(x) W^T + bias) + residual, or gated, as one launch.
//
// They start the weights' way from memory before they wait for the kernel that writes x, so that a
// stage of a step costs little more than its bytes; cuBLASLt's kernels cannot, for nothing in them
// waits. Those for few rows take norm and gate along. linear.cu times them against cuBLASLt and
// picks.
#pragma once

#include "kernels/cuda/stream.h"
#include "kernels/linear/linear.h"

namespace decoding::cuda {

// How many variants of our own can compute p on that device, numbered from 0. 0: none.
template <typename T>
int fused_linear_variants(const Device& device, const LinearParams<T>& p);

// One launch. variant < fused_linear_variants(...).
template <typename T>
void fused_linear(Stream& stream, const LinearParams<T>& p, int variant);

// Whether the variant adds up in the order that is the same in all for which this holds, whatever
// the number of rows: they give a row the same bits.
template <typename T>
bool adds_in_one_order(const Device& device, const LinearParams<T>& p, int variant);

}  // namespace decoding::cuda
