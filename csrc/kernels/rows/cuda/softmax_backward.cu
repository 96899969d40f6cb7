// dx = y * (dy - sum(y * dy)), over the last axis; the work is row_backward.cuh's.
#include "kernels/rows/cuda/row_backward.cuh"
#include "kernels/rows/softmax.h"

namespace decoding {
namespace cuda {
namespace {

template <typename T>
struct SoftmaxGradient {
  using Type = T;
  static constexpr int kInputs = 2, kTotals = 0;
  using RowStats = Nothing;
  const T* inputs[kInputs];  // y, dy
  T* dx;
  static constexpr float* partial = nullptr;

  template <int pack>
  __device__ __forceinline__ Floats<pack> columns(int) const {
    return {};
  }
  __device__ __forceinline__ RowStats row_stats(int) const { return {}; }
  template <int pack>
  __device__ __forceinline__ void add(const float (&in)[kInputs][pack], const Floats<pack>&,
                                      RowStats, float (&sums)[2]) const {
    float piece = 0.0f;
#pragma unroll
    for (int i = 0; i < pack; ++i) piece = fmaf(in[0][i], in[1][i], piece);
    sums[0] += piece;
  }
  template <int pack, typename Totals>
  __device__ __forceinline__ void gradient(int64_t, const float (&in)[kInputs][pack],
                                           const Floats<pack>&, RowStats, const float (&sums)[2],
                                           float (&dx)[pack], Totals&) const {
#pragma unroll
    for (int i = 0; i < pack; ++i) dx[i] = in[0][i] * (in[1][i] - sums[0]);
  }
};

}  // namespace
}  // namespace cuda

template <typename T>
void softmax_backward(cuda::Stream& stream, const SoftmaxBackwardParams<T>& p) {
  if (p.rows == 0) return;
  const cuda::SoftmaxGradient<T> op{.inputs = {p.y, p.dy}, .dx = p.dx};
  bool aligned = cuda::aligned16<T>(p.dx, p.cols);
  for (const T* input : op.inputs) aligned &= cuda::aligned16<T>(input, p.cols);
  cuda::launch_backward(stream, op, p.rows, p.cols, aligned, INT_MAX);
}

#define INSTANTIATE(T) \
  template void softmax_backward(cuda::Stream&, const SoftmaxBackwardParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
