// A block for each row.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/rows/overflow.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) detect_overflow_kernel(const OverflowParams<T> p) {
  wait_for_previous();
  let_next_start();
  const int row = blockIdx.x;
  if (row >= rows_of(p) || place_of(p, row) < 0) return;
  const T* x = p.x + int64_t{row} * p.cols;
  float largest = 0.0f;
  bool is_finite = true;
  for (int c = threadIdx.x; c < p.cols; c += kThreads) {
    const float size = fabsf(to_float(x[c]));
    if (isfinite(size)) {
      largest = fmaxf(largest, size);
    } else {
      is_finite = false;
    }
  }
  // Numbers that are not negative have the order of their bits.
  const uint32_t bits = __reduce_max_sync(0xffffffffu, __float_as_uint(largest));
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<uint32_t*>(&p.count->largest), bits);
  is_finite = __syncthreads_and(is_finite);
  if (threadIdx.x != 0 || (is_finite && !p.renews)) return;
  if (!is_finite) atomicAdd(&p.count->not_finite, 1);
  // Rows of the same place write the same.
  int32_t& first = p.first[place_of(p, row)];
  if (p.renews || first == 0) first = is_finite ? 0 : p.tensor;
}

}  // namespace
}  // namespace cuda

template <typename T>
void detect_overflow(cuda::Stream& stream, const OverflowParams<T>& p) {
  if (p.rows == 0) return;
  cuda::launch(stream, cuda::detect_overflow_kernel<T>, p.rows, cuda::kThreads, 0, p);
}

#define INSTANTIATE(T) template void detect_overflow(cuda::Stream&, const OverflowParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
