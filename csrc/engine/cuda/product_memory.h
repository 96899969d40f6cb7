// The memory that the products of a model need beside their operands:
// kernels/linear/cuda/cublaslt/matmul.h.
#pragma once

#include <algorithm>

#include "engine/model/weights.h"
#include "kernels/linear/cuda/cublaslt/matmul.h"
#include "kernels/linear/cuda/quantized/gemm_w8a8.h"

namespace decoding {

// Bytes of a quantized weight in 16 bits, or of the part of it that is widened at a time; else 0.
inline size_t dequantized_bytes(const Linear& linear) {
  const LinearWeight& weight = linear.weight;
  if (!is_quantized(weight.kind)) return 0;
  const size_t bytes = sizeof(uint16_t) * weight.outputs * weight.inputs;
  return std::min(bytes, cuda::kMostDequantized);
}

inline size_t dequantized_bytes(const StackWeights& stack) {
  size_t most = 0;
  for (const LayerWeights& layer : stack.layers) {
    for (const Linear* linear :
         {&layer.qkv, &layer.self_out, &layer.input, &layer.conv_scores, &layer.cross_q,
          &layer.cross_kv, &layer.cross_out, &layer.up, &layer.down}) {
      most = std::max(most, dequantized_bytes(*linear));
    }
  }
  return most;
}

inline size_t product_memory(const StackWeights& stack) {
  return cuda::kMatmulWorkspace + dequantized_bytes(stack);
}

inline size_t product_memory(const ModelWeights& weights) {
  size_t most = std::max(dequantized_bytes(weights.decoder), dequantized_bytes(weights.output));
  if (weights.encoder) most = std::max(most, dequantized_bytes(*weights.encoder));
  return cuda::kMatmulWorkspace + most;
}

// Throws where W8A8 is asked for that the device has no kernel for.
inline void check_activations(const StackSpec& spec, const cuda::Device& device) {
  CHECK(!spec.int8_activations || cuda::multiplies_w8a8(device),
        "activations in int8 need a GPU of compute capability 9.0 (H100, H200), and an engine that "
        "is compiled for it: leave activation_dtype out");
}

}  // namespace decoding
