// The few types that every layer shares.
#pragma once

#include <cstddef>
#include <cstdint>

namespace decoding {

constexpr size_t kAlignment = 256;  // bytes; of every buffer in the pool

enum class Activation { none, relu, gelu, gelu_tanh, silu };

// How the numbers of a linear weight are stored. Quantised kinds join here.
enum class WeightKind { float32 };

// The weight of y = x W^T, packed for the kernels: see kernels/linear.h for the layout.
struct LinearWeight {
  const void* data = nullptr;    // [panels, inputs, kPanel], in the type that `kind` names
  const float* scale = nullptr;  // [outputs] for quantised kinds, else null
  WeightKind kind = WeightKind::float32;
  int outputs = 0, inputs = 0;
};

}  // namespace decoding
