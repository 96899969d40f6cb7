// The few types that every layer shares.
#pragma once

#include <cstddef>
#include <cstdint>

namespace decoding {

constexpr size_t kAlignment = 256;  // bytes; of every buffer in the pool

enum class Activation { none, relu, gelu, gelu_tanh, silu };

// How the numbers of a linear weight are stored. Quantised kinds join here.
enum class WeightKind { float32, float16, bfloat16 };

// The norm that stands before an operator; none where gamma is null.
//   layer:  (x - mean(x)) / sqrt(var(x) + eps) * gamma + beta
//   rms:    x / sqrt(mean(x^2) + eps) * gamma                     (Zhang & Sennrich 2019)
struct Norm {
  const float* gamma = nullptr;  // [H]
  const float* beta = nullptr;   // [H], may be null; null with rms
  float eps = 1e-5f;
  bool rms = false;
};

// The weight of y = x W^T, laid out for the kernels of a backend: see kernels/linear.h.
struct LinearWeight {
  const void* data = nullptr;    // in the type that `kind` names
  const float* scale = nullptr;  // [outputs] for quantised kinds, else null
  WeightKind kind = WeightKind::float32;
  int outputs = 0, inputs = 0;
};

}  // namespace decoding
