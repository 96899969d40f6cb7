// A team of threads, a warp or a block, has a row in registers, 8 neighbouring numbers at a time.
#include <cstdint>

#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/linear/cuda/quantized/quantize.h"
#include "kernels/linear/linear.h"

namespace decoding::cuda {
namespace {

constexpr int kThreads = 128, kPack = 8;
constexpr uint32_t kInfinity = 0x7F800000;  // bits; those of NaN are larger

template <typename X>
using Parts = X[kThreads / kWarp];

// Over a team, for all its threads. parts: of a block's warps, a place of its own for each call.
template <int team>
__device__ __forceinline__ float sum_of(float x, Parts<float>& parts) {
  x = warp_sum(x);
  if constexpr (team == kWarp) return x;
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
  __syncthreads();
  return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}
template <int team>
__device__ __forceinline__ uint32_t most_of(uint32_t x, Parts<uint32_t>& parts) {
  x = __reduce_max_sync(kAllLanes, x);
  if constexpr (team == kWarp) return x;
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
  __syncthreads();
  return max(max(parts[0], parts[1]), max(parts[2], parts[3]));
}

__device__ __forceinline__ void load(float (&to)[kPack], const float* from) {
  const auto low = Vector<float>::load(from), high = Vector<float>::load(from + kPack / 2);
#pragma unroll
  for (int i = 0; i < kPack; ++i) to[i] = i < kPack / 2 ? low[i] : high[i - kPack / 2];
}

// What will be rounded to int8 need not be exact: gelu is x (1 + tanh(...)) / 2, which is within
// 5e-4 of it, and its tanh the hardware's.
template <typename T>
__device__ __forceinline__ void activate_roughly(float (&x)[kPack], Activation activation) {
  if (activation != Activation::gelu && activation != Activation::gelu_tanh) {
    return activate<T>(x, activation);
  }
#pragma unroll
  for (float& value : x) {
    const float u = value * fmaf(0.0356774081f * value, value, 0.797884561f), half = 0.5f * value;
    float tanh;
    asm("tanh.approx.f32 %0, %1;" : "=f"(tanh) : "f"(u));
    value = fmaf(half, tanh, half);
  }
}

// Four numbers times `factor`, at most 127 then, as bytes: added to 1.5 * 2^23 a number becomes
// whole in the lowest bits.
__device__ __forceinline__ uint32_t to_int8(const float* x, float factor) {
  uint32_t bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) bits[i] = __float_as_uint(fmaf(x[i], factor, 12582912.0f));
  const uint32_t low = __byte_perm(bits[0], bits[1], 0x0040);
  const uint32_t high = __byte_perm(bits[2], bits[3], 0x0040);
  return __byte_perm(low, high, 0x5410);
}

template <typename T, int team, int vectors>
__global__ void __launch_bounds__(kThreads) quantize_kernel(const QuantizeParams<T> p) {
  __shared__ Parts<float> parts[2];
  __shared__ Parts<uint32_t> most_parts;
  const int thread = threadIdx.x % team;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / team) + threadIdx.x / team;
  wait_for_previous();
  let_next_start();
  if (row >= p.rows) return;  // the whole team
  float x[vectors][kPack] = {};
  const auto for_vectors = [&](auto&& use) {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int col = (i * team + thread) * kPack;
      if (col < p.cols) use(x[i], col);
    }
  };
  const T* from = p.x + row * (p.gated ? 2 * p.cols : p.cols);
  for_vectors([&](float (&values)[kPack], int col) {
    const auto loaded = Vector<T>::load(from + col);
#pragma unroll
    for (int i = 0; i < kPack; ++i) values[i] = loaded[i];
  });
  if (p.norm.gamma != nullptr) {
    float sum = 0.0f, squares = 0.0f;
    for_vectors([&](const float (&values)[kPack], int) {
#pragma unroll
      for (const float value : values) sum += value;
    });
    const float mean = p.norm.rms ? 0.0f : sum_of<team>(sum, parts[0]) / p.cols;
    for_vectors([&](float (&values)[kPack], int) {
#pragma unroll
      for (float& value : values) value -= mean, squares = fmaf(value, value, squares);
    });
    const float rstd = rsqrtf(sum_of<team>(squares, parts[1]) / p.cols + p.norm.eps);
    for_vectors([&](float (&values)[kPack], int col) {
      float gamma[kPack], beta[kPack] = {};
      load(gamma, p.norm.gamma + col);
      if (p.norm.beta != nullptr) load(beta, p.norm.beta + col);
      Vector<T> normed;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        values[i] = fmaf(values[i] * rstd, gamma[i], beta[i]);
        normed.values[i] = from_float<T>(values[i]);
      }
      if (p.normed != nullptr) normed.store(p.normed + row * p.cols + col);
    });
  } else {
    for_vectors([&](float (&values)[kPack], int col) {
      activate_roughly<T>(values, p.activation);
      if (!p.gated) return;
      const auto up = Vector<T>::load(from + p.cols + col);
#pragma unroll
      for (int i = 0; i < kPack; ++i) values[i] *= up[i];
    });
  }
  uint32_t bits = 0;
  for_vectors([&](const float (&values)[kPack], int) {
#pragma unroll
    for (const float value : values) bits = max(bits, __float_as_uint(fabsf(value)));
  });
  bits = most_of<team>(bits, most_parts);
  const float most = __uint_as_float(bits), factor = most > 0.0f ? 127.0f / most : 0.0f;
  if (thread == 0) p.y.scale[row] = bits < kInfinity ? most / 127.0f : NAN;
  int8_t* const to = p.y.data + row * quantized_stride(p.cols);
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    const int col = (i * team + thread) * kPack;
    const bool odd = thread % 2 != 0;  // the last eight of 16 inputs
    const uint32_t low = to_int8(x[i], factor), high = to_int8(x[i] + 4, factor);
    const uint32_t other = __shfl_xor_sync(kAllLanes, odd ? low : high, 1);
    const uint32_t a = odd ? other : low, b = odd ? high : other;
    if (col >= p.cols) continue;
    // Their pairs in turns: see linear.h.
    *reinterpret_cast<uint2*>(to + col) =
        make_uint2(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
  }
}

template <int team, int vectors, typename T>
void start(Stream& stream, const QuantizeParams<T>& p) {
  constexpr int kRows = kThreads / team;  // of a block
  launch(stream, quantize_kernel<T, team, vectors>, dim3((p.rows + kRows - 1) / kRows),
         dim3(kThreads), 0, p);
}

}  // namespace

template <typename T>
void quantize(Stream& stream, const QuantizeParams<T>& p) {
  constexpr int kOfWarp = kWarp * kPack, kOfBlock = kThreads * kPack;  // columns of a vector each
  if (p.cols <= 4 * kOfWarp) return start<kWarp, 4>(stream, p);
  if (p.cols <= 2 * kOfBlock) return start<kThreads, 2>(stream, p);
  if (p.cols <= 4 * kOfBlock) return start<kThreads, 4>(stream, p);
  if (p.cols <= 8 * kOfBlock) return start<kThreads, 8>(stream, p);
  start<kThreads, kMostQuantizedInputs / kOfBlock>(stream, p);
}

#define INSTANTIATE(T) template void quantize(Stream&, const QuantizeParams<T>&);
INSTANTIATE(half)
INSTANTIATE(bfloat16)

}  // namespace decoding::cuda
