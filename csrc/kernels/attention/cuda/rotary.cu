// A warp takes heads of one row, one after the other. This is the packed pass's: in a step decode
// attention rotates its own inputs.
#include <algorithm>

#include "kernels/attention/cuda/rotary.cuh"
#include "kernels/attention/head_dim.h"
#include "kernels/cuda/launch.cuh"

namespace decoding {
namespace cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kBlocks = 8;  // of a multiprocessor, that are worth having

// pairs: of a lane.
template <int pairs, typename T>
__global__ void __launch_bounds__(kWarps* kWarp) rotary_kernel(const RotaryParams<T> p) {
  const int row = blockIdx.x;
  const WarpRotary<pairs> rotate(p.rotary, p.head_dim,
                                 p.rotary.frequencies != nullptr ? p.rotary.positions[row] : 0);
  wait_for_previous();
  let_next_start();

  const int first = blockIdx.y * kWarps + threadIdx.x / kWarp;
  for (int head = first; head < p.heads + p.kv_heads; head += gridDim.y * kWarps) {
    T* const data = p.x + int64_t{row} * p.stride + head * p.head_dim;
    rotate(data, data, head < p.heads);
  }
}

template <int pairs, typename T>
void launch_rotary(Stream& stream, const RotaryParams<T>& p) {
  const int most = (p.heads + p.kv_heads + kWarps - 1) / kWarps;
  const int worth = kBlocks * stream.device().multiprocessors / p.rows + 1;
  launch(stream, rotary_kernel<pairs, T>, dim3(p.rows, std::min(most, worth)), dim3(kWarps * kWarp),
         0, p);
}

}  // namespace
}  // namespace cuda

template <typename T>
void apply_rotary(cuda::Stream& stream, const RotaryParams<T>& p) {
  if (p.rows == 0) return;
  static_assert(kMaxHeadDim == 4 * 2 * cuda::kWarp);
  if (p.head_dim <= 2 * cuda::kWarp) return cuda::launch_rotary<1>(stream, p);
  if (p.head_dim <= 4 * cuda::kWarp) return cuda::launch_rotary<2>(stream, p);
  cuda::launch_rotary<4>(stream, p);
}

#define INSTANTIATE(T) template void apply_rotary(cuda::Stream&, const RotaryParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
