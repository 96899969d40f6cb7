// A thread widens 16 inputs of an output.
#include "kernels/cuda/launch.cuh"
#include "kernels/linear/cuda/quantized/dequantize.h"
#include "kernels/linear/cuda/quantized/widen.cuh"

namespace decoding::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kGroup = 16;

template <typename T, typename W>
__device__ __forceinline__ uint2 scaled(uint32_t four, float scale) {
  const uint2 pairs = widen<T, W>(four);
  const float2 a = unpack<T>(pairs.x), b = unpack<T>(pairs.y);
  return {pack<T>({a.x * scale, a.y * scale}), pack<T>({b.x * scale, b.y * scale})};
}

// whole: rows of `to` can be written 16 bytes at a time.
template <typename W, bool whole, typename T>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(const LinearWeight weight, T* to) {
  const int groups = quantized_stride(weight.inputs) / kGroup;
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t output = item / groups;
  const int k = static_cast<int>(item - output * groups) * kGroup;
  const bool inside = output < weight.outputs;
  uint4 bits{};
  float scale = 0.0f;
  if (inside) {
    bits = request_weight(static_cast<const uint8_t*>(weight.data) + item * kGroup, true);
    scale = weight.scale[output];
  }
  wait_for_previous();
  let_next_start();
  if (!inside) return;
  const uint2 pairs[] = {scaled<T, W>(bits.x, scale), scaled<T, W>(bits.y, scale),
                         scaled<T, W>(bits.z, scale), scaled<T, W>(bits.w, scale)};
  alignas(16) uint32_t words[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = pairs[i].x, words[4 + i] = pairs[i].y;
  T* const row = to + output * weight.inputs + k;
  if constexpr (whole) {
    const auto* const halves = reinterpret_cast<const uint4*>(words);
    reinterpret_cast<uint4*>(row)[0] = halves[0];
    if (k + kGroup / 2 < weight.inputs) reinterpret_cast<uint4*>(row)[1] = halves[1];
  } else {
    const T* const values = reinterpret_cast<const T*>(words);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (k + i < weight.inputs) row[i] = values[i];
    }
  }
}

template <typename T, typename W>
auto kernel_of(bool whole) {
  return whole ? dequantize_kernel<W, true, T> : dequantize_kernel<W, false, T>;
}

}  // namespace

template <typename T>
void dequantize(Stream& stream, const LinearWeight& weight, T* to) {
  const int64_t items = int64_t{weight.outputs} * (quantized_stride(weight.inputs) / kGroup);
  const bool whole = aligned16<T>(to, weight.inputs);
  const auto kernel =
      weight.kind == WeightKind::int8 ? kernel_of<T, int8_t>(whole) : kernel_of<T, Float8>(whole);
  launch(stream, kernel, dim3((items + kThreads - 1) / kThreads), dim3(kThreads), 0, weight, to);
}

#define INSTANTIATE(T) template void dequantize(Stream&, const LinearWeight&, T*);
INSTANTIATE(half)
INSTANTIATE(bfloat16)

}  // namespace decoding::cuda
