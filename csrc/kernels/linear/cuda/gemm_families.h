// The families of kernels of gemm.h. Each counts its variants for a product, which
// depend on all of it but the rows: any variant computes any number of them.
#pragma once

#include "kernels/cuda/stream.h"
#include "kernels/linear/linear.h"

namespace decoding::cuda {

// half and bfloat16: weights go from memory straight to the registers that multiply them.
template <typename T>
int small_m_variants(const Device& device, const LinearParams<T>& p);
template <typename T>
void small_m_linear(Stream& stream, const LinearParams<T>& p, int variant);

// half and bfloat16, of weights that are quantized or large: they stream through shared memory to
// the registers that multiply them.
template <typename T>
int streamed_variants(const Device& device, const LinearParams<T>& p);
template <typename T>
void streamed_linear(Stream& stream, const LinearParams<T>& p, int variant);

// half and bfloat16, also of quantized weights: tiles of x and W pass through shared memory.
template <typename T>
int tiled_variants(const Device& device, const LinearParams<T>& p);
template <typename T>
void tiled_linear(Stream& stream, const LinearParams<T>& p, int variant);
template <typename T>
bool tiled_in_one_order(const Device& device, const LinearParams<T>& p, int variant);

// half and bfloat16, on Hopper: the same by its own instruction, also of quantized weights, which
// may be gated, for outputs that can be written 16 bytes at a time.
template <typename T>
int wgmma_variants(const Device& device, const LinearParams<T>& p);
template <typename T>
void wgmma_linear(Stream& stream, const LinearParams<T>& p, int variant);

// float: without tensor cores, which would round the factors.
int fp32_variants(const Device& device, const LinearParams<float>& p);
void fp32_linear(Stream& stream, const LinearParams<float>& p, int variant);

}  // namespace decoding::cuda
