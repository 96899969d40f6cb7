// A warp norms and rotates heads of one position (kernels/attention/rotary.h): a lane has the same
// pairs of elements in each, so their sines and cosines are computed once, before the wait for
// the kernel that writes x: positions are older than that.
#pragma once

#include "kernels/attention/rotary.h"
#include "kernels/cuda/vector.cuh"

namespace decoding::cuda {

// Two elements of a head: a pair that is rotated, or two neighbours from `size` on.
struct Pair {
  int a, b;            // where they are
  bool has_a, has_b;   // whether they are in the head
  bool rotates;        // by an angle of this sine and cosine
  float sine, cosine;  // times factor
  float2 q_gamma, k_gamma;

  __device__ __forceinline__ static Pair make(const Rotary& rotary, int head_dim, int i,
                                              RotaryPosition place) {
    const int half = rotary.frequencies != nullptr ? rotary.size / 2 : 0;
    Pair pair{};
    pair.rotates = i < half;
    const bool halves = pair.rotates && !rotary.interleaved;
    pair.a = halves ? i : 2 * i, pair.b = halves ? i + half : 2 * i + 1;
    pair.has_a = pair.a < head_dim, pair.has_b = pair.b < head_dim;
    if (pair.rotates) {
      const float frequency = rotary.frequencies[place.table * half + i];
      sincosf(__fmul_rn(place.position, frequency), &pair.sine, &pair.cosine);
      pair.sine *= rotary.factor, pair.cosine *= rotary.factor;
    }
    if (rotary.q_norm.gamma != nullptr) pair.q_gamma = pair.load(rotary.q_norm.gamma);
    if (rotary.k_norm.gamma != nullptr) pair.k_gamma = pair.load(rotary.k_norm.gamma);
    return pair;
  }

  template <typename T>
  __device__ __forceinline__ float2 load(const T* head) const {
    return {has_a ? to_float(head[a]) : 0.0f, has_b ? to_float(head[b]) : 0.0f};
  }
  template <typename T>
  __device__ __forceinline__ void store(T* head, float2 x) const {
    if (rotates) {
      x = {fmaf(x.x, cosine, -(x.y * sine)), fmaf(x.y, cosine, x.x * sine)};
    }
    if (has_a) head[a] = from_float<T>(x.x);
    if (has_b) head[b] = from_float<T>(x.y);
  }
};

// count: pairs of a lane, enough for heads of count * 64.
template <int count>
class WarpRotary {
 public:
  // at: of the heads to come, as in Rotary.
  __device__ __forceinline__ WarpRotary(const Rotary& rotary, int head_dim, int at)
      : rotation_(rotary), head_dim_(head_dim) {
    const RotaryPosition place = rotary.tables.unpack(at);
#pragma unroll
    for (int i = 0; i < count; ++i) {
      pairs_[i] = Pair::make(rotary, head_dim, threadIdx.x % kWarp + i * int{kWarp}, place);
    }
  }

  // One head, of a query or a key; `to` may be `from`.
  template <typename T>
  __device__ __forceinline__ void operator()(const T* from, T* to, bool query) const {
    float2 x[count];
#pragma unroll
    for (int i = 0; i < count; ++i) x[i] = pairs_[i].load(from);
    const Norm& norm = query ? rotation_.q_norm : rotation_.k_norm;
    if (norm.gamma != nullptr) {
      float squares = 0.0f;
#pragma unroll
      for (int i = 0; i < count; ++i) squares = fmaf(x[i].x, x[i].x, fmaf(x[i].y, x[i].y, squares));
      const float scale = rsqrtf(warp_sum(squares) / head_dim_ + norm.eps);
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const float2 gamma = query ? pairs_[i].q_gamma : pairs_[i].k_gamma;
        x[i] = {x[i].x * scale * gamma.x, x[i].y * scale * gamma.y};
      }
    }
#pragma unroll
    for (int i = 0; i < count; ++i) pairs_[i].store(to, x[i]);
  }

 private:
  const Rotary& rotation_;
  const int head_dim_;
  Pair pairs_[count];
};

}  // namespace decoding::cuda
