// A warp takes heads of one row, one after the other. A lane has the same pairs in each, so their
// sines and cosines are computed once, before the wait for the kernel that writes x: positions are
// older than that.
#include <algorithm>

#include "kernels/attention.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/rotate.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kBlocks = 8;  // of a multiprocessor, that are worth having

// Two numbers of a head: those that turn together, or two neighbours behind `size`.
struct Pair {
  int a, b;            // where they are
  bool has_a, has_b;   // whether they are in the head
  bool turns;          // by an angle of this sine and cosine
  float sine, cosine;  // times factor
  float2 q_gamma, k_gamma;

  template <typename T>
  __device__ __forceinline__ static Pair make(const RotateParams<T>& p, int i, Turn turn) {
    const int half = p.frequencies != nullptr ? p.size / 2 : 0;
    Pair pair{};
    pair.turns = i < half;
    const bool halves = pair.turns && !p.interleaved;
    pair.a = halves ? i : 2 * i, pair.b = halves ? i + half : 2 * i + 1;
    pair.has_a = pair.a < p.head_dim, pair.has_b = pair.b < p.head_dim;
    if (pair.turns) {
      const float frequency = p.frequencies[turn.table * half + i];
      sincosf(__fmul_rn(turn.position, frequency), &pair.sine, &pair.cosine);
      pair.sine *= p.factor, pair.cosine *= p.factor;
    }
    if (p.q_norm.gamma != nullptr) pair.q_gamma = pair.load(p.q_norm.gamma);
    if (p.k_norm.gamma != nullptr) pair.k_gamma = pair.load(p.k_norm.gamma);
    return pair;
  }

  template <typename T>
  __device__ __forceinline__ float2 load(const T* head) const {
    return {has_a ? to_float(head[a]) : 0.0f, has_b ? to_float(head[b]) : 0.0f};
  }
  template <typename T>
  __device__ __forceinline__ void store(T* head, float2 x) const {
    if (turns) {
      x = {fmaf(x.x, cosine, -(x.y * sine)), fmaf(x.y, cosine, x.x * sine)};
    }
    if (has_a) head[a] = from_float<T>(x.x);
    if (has_b) head[b] = from_float<T>(x.y);
  }
};

// pairs: of a lane.
template <int pairs, typename T>
__global__ void __launch_bounds__(kWarps* kWarp) rotate_kernel(const RotateParams<T> p) {
  const int row = blockIdx.x;
  const Turn turn = p.frequencies != nullptr ? p.tables.turn(p.at[row]) : Turn{};
  Pair pair[pairs];
#pragma unroll
  for (int i = 0; i < pairs; ++i) {
    pair[i] = Pair::make(p, threadIdx.x % kWarp + i * int{kWarp}, turn);
  }
  wait_for_previous();
  let_next_start();

  const int first = blockIdx.y * kWarps + threadIdx.x / kWarp;
  for (int head = first; head < p.heads + p.kv_heads; head += gridDim.y * kWarps) {
    T* const at = p.x + int64_t{row} * p.stride + head * p.head_dim;
    float2 x[pairs];
#pragma unroll
    for (int i = 0; i < pairs; ++i) x[i] = pair[i].load(at);
    const bool query = head < p.heads;
    const Norm& norm = query ? p.q_norm : p.k_norm;
    if (norm.gamma != nullptr) {
      float squares = 0.0f;
#pragma unroll
      for (int i = 0; i < pairs; ++i) squares = fmaf(x[i].x, x[i].x, fmaf(x[i].y, x[i].y, squares));
      const float scale = rsqrtf(warp_sum(squares) / p.head_dim + norm.eps);
#pragma unroll
      for (int i = 0; i < pairs; ++i) {
        const float2 gamma = query ? pair[i].q_gamma : pair[i].k_gamma;
        x[i] = {x[i].x * scale * gamma.x, x[i].y * scale * gamma.y};
      }
    }
#pragma unroll
    for (int i = 0; i < pairs; ++i) pair[i].store(at, x[i]);
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
