// A warp takes heads of one row, one after the other. This is the packed pass's: in a step decode
// attention turns what it reads.
#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/attention/cuda/rotary.cuh"
#include "kernels/cuda/launch.cuh"

namespace decoding {
namespace cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kBlocks = 8;  // of a multiprocessor, that are worth having

// pairs: of a lane.
template <int pairs, typename T>
__global__ void __launch_bounds__(kWarps* kWarp) rotate_kernel(const RotateParams<T> p) {
  const int row = blockIdx.x;
  const Turn<pairs> turn(p.rotation, p.head_dim,
                         p.rotation.frequencies != nullptr ? p.rotation.at[row] : 0);
  wait_for_previous();
  let_next_start();

  const int first = blockIdx.y * kWarps + threadIdx.x / kWarp;
  for (int head = first; head < p.heads + p.kv_heads; head += gridDim.y * kWarps) {
    T* const at = p.x + int64_t{row} * p.stride + head * p.head_dim;
    turn(at, at, head < p.heads);
  }
}

template <int pairs, typename T>
void launch_rotate(Stream& stream, const RotateParams<T>& p) {
  const int most = (p.heads + p.kv_heads + kWarps - 1) / kWarps;
  const int worth = kBlocks * stream.device().multiprocessors / p.rows + 1;
  launch(stream, rotate_kernel<pairs, T>, dim3(p.rows, std::min(most, worth)), dim3(kWarps * kWarp),
         0, p);
}

}  // namespace
}  // namespace cuda

template <typename T>
void rotate(cuda::Stream& stream, const RotateParams<T>& p) {
  if (p.rows == 0) return;
  static_assert(kMaxHeadDim == 4 * 2 * cuda::kWarp);
  if (p.head_dim <= 2 * cuda::kWarp) return cuda::launch_rotate<1>(stream, p);
  if (p.head_dim <= 4 * cuda::kWarp) return cuda::launch_rotate<2>(stream, p);
  cuda::launch_rotate<4>(stream, p);
}

#define INSTANTIATE(T) template void rotate(cuda::Stream&, const RotateParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
