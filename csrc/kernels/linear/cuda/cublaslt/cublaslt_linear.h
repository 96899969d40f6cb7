// y = activation(x W^T + bias) + residual through cuBLASLt, and what it leaves through a kernel of
// our own.
//
// cuBLASLt does what it can of what follows the product: a bias in the type of y, relu and the tanh
// form of gelu, and the residual as the matrix that it adds to.
//
// A quantized weight is widened to 16 bits before it (dequantize.h), in parts that stay in the L2
// cache: that pays for products of many rows.
#pragma once

#include <vector>

#include "kernels/cuda/types.h"
#include "kernels/linear/cuda/cublaslt/matmul.h"
#include "kernels/linear/linear.h"

namespace decoding::cuda {

template <typename T>
constexpr cudaDataType_t kType = CUDA_R_32F;
template <>
inline constexpr cudaDataType_t kType<half> = CUDA_R_16F;
template <>
inline constexpr cudaDataType_t kType<bfloat16> = CUDA_R_16BF;

template <typename T>
int stride_of(const LinearParams<T>& p) {
  return p.stride == 0 ? p.weight.outputs : p.stride;
}

// Makes the copy of p's bias in 16 bits, where cuBLASLt could use one and there is none.
template <typename T>
void prepare_bias(Stream& stream, const LinearParams<T>& p);

// Whether cuBLASLt does all that follows the product.
template <typename T>
bool is_whole(const Matmul& matmul, const LinearParams<T>& p);

// In the following p is without a norm.
template <typename T>
std::vector<cublaslt::Algorithm> cublaslt_proposals(Stream& stream, const LinearParams<T>& p,
                                                    int most);
template <typename T>
void cublaslt_linear(Stream& stream, const LinearParams<T>& p,
                     const cublaslt::Algorithm& algorithm);

}  // namespace decoding::cuda
