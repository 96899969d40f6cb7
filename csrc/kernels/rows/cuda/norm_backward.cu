// The gradients of a norm in one pass over what was normed and what comes back (row_backward.cuh);
// a second kernel adds up the blocks' totals of the columns.
#include "kernels/rows/cuda/dropout.cuh"
#include "kernels/rows/cuda/row_backward.cuh"
#include "kernels/rows/norm.h"

namespace decoding {
namespace cuda {
namespace {

enum Total { kGamma, kBeta, kBias };

template <typename T>
struct NormGradient {
  using Type = T;
  static constexpr int kInputs = 3, kTotals = 3;
  struct RowStats {
    float mean, rstd;
  };
  const T* inputs[kInputs];  // s, dy, dsum
  T* dx;
  T* dresidual;  // null where it is dx
  float* partial;
  Weight<const T> gamma;
  const float* mean;  // [rows], null: an RMS norm
  const float* rstd;  // [rows]
  float share;        // 1 / cols
  Dropout dropout;

  template <int pack>
  __device__ __forceinline__ Floats<pack> columns(int col) const {
    return load_weight<pack>(gamma, col, 1.0f);
  }
  __device__ __forceinline__ RowStats row_stats(int row) const {
    return {mean != nullptr ? mean[row] : 0.0f, rstd[row]};
  }
  template <int pack>
  __device__ __forceinline__ void add(const float (&in)[kInputs][pack], const Floats<pack>& gamma,
                                      const RowStats& row, float (&sums)[2]) const {
    float piece[2] = {};
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      const float z = (in[0][i] - row.mean) * row.rstd, g = in[1][i] * gamma.values[i];
      piece[0] += g;
      piece[1] = fmaf(g, z, piece[1]);
    }
    sums[0] += piece[0];
    sums[1] += piece[1];
  }
  template <int pack>
  __device__ __forceinline__ void gradient(int64_t place, const float (&in)[kInputs][pack],
                                           const Floats<pack>& gamma, const RowStats& row,
                                           const float (&sums)[2], float (&dx)[pack],
                                           float (&totals)[kTotals][pack]) const {
    const float mean_g = mean != nullptr ? sums[0] * share : 0.0f, mean_gz = sums[1] * share;
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      const float z = (in[0][i] - row.mean) * row.rstd, dy = in[1][i];
      // Rounded, as the mean is, so that nothing is left of a row that is all its mean.
      const float centred = __fmul_rn(dy, gamma.values[i]) - mean_g;
      dx[i] = fmaf(row.rstd, fmaf(-z, mean_gz, centred), in[2][i]);
      totals[kGamma][i] = fmaf(dy, z, totals[kGamma][i]);
      totals[kBeta][i] += dy;
    }
    if (dresidual != nullptr) Packed<T, pack>::of(dx).store(dresidual + place);
    drop(dropout, place, dx);
#pragma unroll
    for (int i = 0; i < pack; ++i) totals[kBias][i] += dx[i];
  }
};

// Each total, as the sum of the blocks' lines.
template <typename T>
struct TotalsParams {
  const float* partial;  // [kTotals, lines, cols]
  Weight<T> totals[3];   // [cols], may be null
  int lines, cols;
};

constexpr int kLineGroups = 16;  // that are added up apart

template <typename T>
__global__ void __launch_bounds__(kWarp* kLineGroups) add_lines_kernel(const TotalsParams<T> p) {
  __shared__ float sums[kLineGroups][kWarp];
  const Weight<T> to = p.totals[blockIdx.y];
  if (to.same == nullptr && to.wide == nullptr) return;
  wait_for_previous();
  let_next_start();
  const int lane = threadIdx.x, group = threadIdx.y, col = blockIdx.x * kWarp + lane;
  const float* from = p.partial + int64_t{blockIdx.y} * p.lines * p.cols + col;
  float sum = 0.0f;
#pragma unroll 4
  for (int line = group; line < p.lines && col < p.cols; line += kLineGroups) {
    sum += from[int64_t{line} * p.cols];
  }
  sums[group][lane] = sum;
  __syncthreads();
  if (group != 0 || col >= p.cols) return;
  for (int other = 1; other < kLineGroups; ++other) sum += sums[other][lane];
  if (to.wide != nullptr) {
    to.wide[col] = sum;
  } else {
    to.same[col] = from_float<T>(sum);
  }
}

}  // namespace
}  // namespace cuda

template <typename T>
void norm_backward(cuda::Stream& stream, const NormBackwardParams<T>& p) {
  const bool totals = p.dgamma || p.dbeta || p.dbias;
  const cuda::NormGradient<T> op{.inputs = {p.s, p.dy, p.dsum},
                                 .dx = p.dx,
                                 .dresidual = p.dresidual,
                                 .partial = totals ? p.partial : nullptr,
                                 .gamma = p.gamma,
                                 .mean = p.mean,
                                 .rstd = p.rstd,
                                 .share = 1.0f / p.cols,
                                 .dropout = p.dropout};
  bool aligned = cuda::aligned16<T>(p.dx, p.cols) && cuda::aligned16<T>(p.dresidual, p.cols) &&
                 cuda::aligned16(p.gamma);
  for (const T* input : op.inputs) aligned &= cuda::aligned16<T>(input, p.cols);
  const int lines =
      p.rows == 0 ? 0 : cuda::launch_backward(stream, op, p.rows, p.cols, aligned, kNormLines);
  if (!totals) return;
  const dim3 grid(cuda::divide_up(p.cols, cuda::kWarp), 3);
  cuda::launch(stream, cuda::add_lines_kernel<T>, grid, dim3(cuda::kWarp, cuda::kLineGroups), 0,
               {.partial = p.partial,
                .totals = {p.dgamma, p.dbeta, p.dbias},
                .lines = lines,
                .cols = p.cols});
}

#define INSTANTIATE(T) template void norm_backward(cuda::Stream&, const NormBackwardParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
