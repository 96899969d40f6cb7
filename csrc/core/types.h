// The few types that every layer shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

// Of a function that both the host and a GPU call.
#ifdef __CUDACC__
#define DECODING_EVERYWHERE __host__ __device__
#else
#define DECODING_EVERYWHERE
#endif

namespace decoding {

constexpr size_t kAlignment = 256;  // bytes; of every buffer in the pool

// A bfloat16 in memory: the upper half of a float32.
struct BFloat16 {
  uint16_t bits;
};

// An IEEE half in memory, where the compiler has no type for it.
struct Float16 {
  uint16_t bits;
};

// An e4m3 in memory (Micikevicius et al. 2022): numbers up to 448 with 4 significant bits, NaN, and
// no infinity.
struct Float8 {
  uint8_t bits;
};

// The type that operators on T compute and add up in.
template <typename T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

enum class Activation { none, relu, gelu, gelu_tanh, silu, sigmoid };

// The element type of a weight. int8 is for linear weights alone; float8 for those of a GPU, and
// for keys and values.
enum class WeightKind { float32, float16, bfloat16, int8, float8 };

// Whether a scale for each output stands beside a weight.
constexpr bool is_quantized(WeightKind kind) {
  return kind == WeightKind::int8 || kind == WeightKind::float8;
}

// The norm before an operator; none where gamma is null.
//   layer:  (x - mean(x)) / sqrt(var(x) + eps) * gamma + beta
//   rms:    x / sqrt(mean(x^2) + eps) * gamma                     (Zhang & Sennrich 2019)
struct Norm {
  const float* gamma = nullptr;  // [H]
  const float* beta = nullptr;   // [H], may be null; null with rms
  float eps = 1e-5f;
  bool rms = false;
};

// The weight of y = x W^T, laid out for the kernels of a backend: see kernels/linear/linear.h. A
// quantized one is W[n, k] = scale[n] * q[n, k], and sums[n] is the sum of q[n, k] over k.
struct LinearWeight {
  const void* data = nullptr;     // in the type that `kind` names
  const float* scale = nullptr;   // [outputs] of a quantized weight, else null
  const int32_t* sums = nullptr;  // [outputs] for int8 on the CPU, else null
  WeightKind kind = WeightKind::float32;
  int outputs = 0, inputs = 0;
};

// Rows that a GPU rounds to int8, W8A8's activations: x[r, k] = scale[r] * data[r, k], with
// scale[r] = max |x[r]| / 127, NaN where x[r] is not finite. They lie as rows of a quantized
// weight.
struct QuantizedRows {
  int8_t* data = nullptr;  // [rows, quantized_stride(cols)]
  float* scale = nullptr;  // [rows]
};

}  // namespace decoding
