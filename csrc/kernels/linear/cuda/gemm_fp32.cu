// y = activation(norm(x) W^T + bias) + residual, or gated, in float32: the mode that matches other
// libraries to the token, so plain multiply-adds, no TF32.
//
// A block holds up to kRows rows of x in shared memory, normed there; each of its warps computes
// two outputs, of which one may be the other's gate, its lanes sharing out K, four inputs at a
// time. The first kAhead weights of each lane are requested before the wait for the kernel that
// writes x. The order of a sum depends on K alone, never on the rows of a block.
#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/linear/cuda/gemm_families.h"

namespace decoding::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kOutputs = 2;       // of a warp
constexpr int kAhead = 4;         // requests of a lane for each output
constexpr int kStep = 4 * kWarp;  // inputs that a warp multiplies at a time
// Of y, of a warp.
template <bool kGated>
constexpr int kColumns = kGated ? 1 : kOutputs;

__device__ __forceinline__ float4 request(const LinearWeight& weight, int output, int k) {
  const float* row =
      static_cast<const float*>(weight.data) + static_cast<int64_t>(output) * weight.inputs;
  const uint4 bits = request_weight(row + k, output < weight.outputs && k < weight.inputs);
  return reinterpret_cast<const float4&>(bits);
}

// Norms a row of `inputs` floats in shared memory; all lanes of a warp take part.
__device__ void norm_row(float* x, int inputs, const Norm& norm) {
  const int lane = threadIdx.x % kWarp;
  float mean = 0.0f;
  if (!norm.rms) {
    float sum = 0.0f;
    for (int k = lane; k < inputs; k += kWarp) sum += x[k];
    mean = warp_sum(sum) / inputs;
  }
  float squares = 0.0f;
  for (int k = lane; k < inputs; k += kWarp) squares += (x[k] - mean) * (x[k] - mean);
  const float scale = 1.0f / sqrtf(warp_sum(squares) / inputs + norm.eps);
  for (int k = lane; k < inputs; k += kWarp) {
    const float shift = norm.beta != nullptr ? norm.beta[k] : 0.0f;
    x[k] = fmaf((x[k] - mean) * scale, norm.gamma[k], shift);
  }
}

// Rows of x to shared memory, and of norm(x) to p.normed, each block of a row of the grid a part.
__device__ void stage_rows(const LinearParams<float>& p, int first_row, int rows, float* x) {
  const int inputs = p.weight.inputs;
  const float* from = p.x + static_cast<int64_t>(first_row) * inputs;
  for (int i = 4 * threadIdx.x; i < rows * inputs; i += 4 * kWarps * kWarp) {
    *reinterpret_cast<float4*>(x + i) = *reinterpret_cast<const float4*>(from + i);
  }
  __syncthreads();
  if (p.norm.gamma == nullptr) return;
  for (int row = threadIdx.x / kWarp; row < rows; row += kWarps) {
    norm_row(x + row * inputs, inputs, p.norm);
  }
  __syncthreads();
  float* to = p.normed + static_cast<int64_t>(first_row) * inputs;
  const int thread = blockIdx.x * kWarps * kWarp + threadIdx.x;
  for (int i = thread; i < rows * inputs; i += gridDim.x * kWarps * kWarp) to[i] = x[i];
}

// A column of y from its sum, and from that of what its gate lets through.
template <bool kGated>
__device__ __forceinline__ void finish(const LinearParams<float>& p, int row, int column, float sum,
                                       float through) {
  const int columns = kGated ? p.weight.outputs / 2 : p.weight.outputs;
  if (column >= columns) return;
  const int64_t stride = p.stride > 0 ? p.stride : columns, at = row * stride + column;
  float y = activate<float>(p.bias != nullptr ? sum + p.bias[column] : sum, p.activation);
  if (kGated) y *= p.bias != nullptr ? through + p.bias[columns + column] : through;
  p.y[at] = p.residual != nullptr ? y + p.residual[at] : y;
}

template <int kRows, bool kGated>
__global__ void __launch_bounds__(kWarps* kWarp) fp32_kernel(const LinearParams<float> p) {
  extern __shared__ __align__(16) float x[];
  const int inputs = p.weight.inputs;
  const int lane = threadIdx.x % kWarp;
  const int column = (blockIdx.x * kWarps + threadIdx.x / kWarp) * kColumns<kGated>;
  const int step = kGated ? p.weight.outputs / 2 : 1;  // from one output of the warp to the next
  float4 weights[kAhead][kOutputs];
  const auto fetch = [&](int ahead, int k) {
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) weights[ahead][n] = request(p.weight, column + n * step, k);
  };
#pragma unroll
  for (int ahead = 0; ahead < kAhead; ++ahead) fetch(ahead, ahead * kStep + 4 * lane);
  wait_for_previous();
  let_next_start();

  const int first_row = blockIdx.y * kRows, rows = min(kRows, p.rows - first_row);
  stage_rows(p, first_row, rows, x);
  float sums[kOutputs][kRows] = {};
  for (int start = 0; start < inputs; start += kAhead * kStep) {
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      const int k = start + ahead * kStep + 4 * lane;
      if (k >= inputs) break;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 a = *reinterpret_cast<const float4*>(x + min(r, rows - 1) * inputs + k);
#pragma unroll
        for (int n = 0; n < kOutputs; ++n) {
          const float4 w = weights[ahead][n];
          sums[n][r] = fmaf(a.x, w.x, fmaf(a.y, w.y, fmaf(a.z, w.z, fmaf(a.w, w.w, sums[n][r]))));
        }
      }
      fetch(ahead, k + kAhead * kStep);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float own[kOutputs];
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) own[n] = warp_sum(sums[n][r]);
#pragma unroll
    for (int n = 0; n < kColumns<kGated>; ++n) {
      if (lane != kColumns<kGated> * r + n || r >= rows) continue;
      finish<kGated>(p, first_row + r, column + n, own[n], own[1]);
    }
  }
}

// Of shared memory, for `rows` rows of a block.
size_t bytes_of(int rows, const LinearParams<float>& p) {
  return sizeof(float) * rows * p.weight.inputs;
}

template <int kRows>
void start(Stream& stream, const LinearParams<float>& p) {
  constexpr int kBlock = kWarps * kOutputs;
  launch(stream, p.gated != nullptr ? fp32_kernel<kRows, true> : fp32_kernel<kRows, false>,
         dim3((p.weight.outputs + kBlock - 1) / kBlock, (p.rows + kRows - 1) / kRows),
         dim3(kWarps * kWarp), bytes_of(kRows, p), p);
}

}  // namespace

int fp32_variants(const Device& device, const LinearParams<float>& p) {
  return bytes_of(1, p) <= static_cast<size_t>(device.shared_memory);
}

void fp32_linear(Stream& stream, const LinearParams<float>& p, int) {
  const auto most = static_cast<size_t>(stream.device().shared_memory);
  if (p.rows > 4 && bytes_of(8, p) <= most) return start<8>(stream, p);
  if (p.rows > 1 && bytes_of(4, p) <= most) return start<4>(stream, p);
  start<1>(stream, p);
}

}  // namespace decoding::cuda
