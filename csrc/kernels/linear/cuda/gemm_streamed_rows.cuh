// The rows of x on their way into a block of gemm_streamed.cu, through its norm.
#pragma once

#include "kernels/linear/cuda/gemm_streamed.cuh"

namespace decoding::cuda::gemm_streamed {

// The block's rows of x, as they are or normed, to shared memory. Warps share a row where there are
// fewer rows than warps; a thread takes every kThreads-th piece of 16 bytes, or a part of that.
template <typename T, typename S>
class Rows {
 public:
  __device__ __forceinline__ Rows(const LinearParams<T>& p, int first, int rows, T* to)
      : rows_(rows),
        share_(rows > 4   ? 1
               : rows > 2 ? 2
               : rows > 1 ? 4
                          : 8),
        rank_(threadIdx.x / kWarp % share_),
        begin_(static_cast<int>(rank_ * kWarp + threadIdx.x % kWarp) * kPiece),
        step_(static_cast<int>(share_ * kWarp) * kPiece),
        inputs_(p.weight.inputs),
        stride_(row_stride<S>(inputs_)),
        first_(first),
        from_(p.x + int64_t{first_} * inputs_),
        to_(to) {
    for_rows([&](int row) { prefetch(from_ + int64_t{row} * inputs_ + min(begin_, inputs_ - 1)); });
  }

  // After it and a barrier all rows lie there.
  __device__ __forceinline__ void load(const Norm& norm, Shared<S>& shared) const {
    for_rows([&](int row) {
      const T* const from = from_ + int64_t{row} * inputs_;
      const float first = S::kNorm && !norm.rms ? to_float(from[0]) : 0.0f;
      float2 sums{};
      for (int k = begin_; k < depth_of<S>(inputs_); k += kBatch * step_) {
        uint4 pieces[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) pieces[i] = piece(from, k + i * step_);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int own = k + i * step_;
          if (own >= depth_of<S>(inputs_)) break;
          *reinterpret_cast<uint4*>(to_ + row * stride_ + own) = pieces[i];
          if (S::kNorm && own < inputs_) add(pieces[i], first, sums);
        }
      }
      if constexpr (S::kNorm) {
        sums = {warp_sum(sums.x), warp_sum(sums.y)};
        if (threadIdx.x % kWarp == 0) shared.moments[row][rank_] = sums;
      }
    });
  }

  // Once the sums of all warps are there. gamma, beta: [depth], zeros after the inputs. Sums are
  // relative to the row's first element, or 0 for an RMS norm: see gemm_small.cuh.
  __device__ __forceinline__ void normalize(const Norm& norm, const Shared<S>& shared,
                                            const float* gamma, const float* beta,
                                            T* normed) const {
    const float part = 1.0f / inputs_;
    for_rows([&](int row) {
      float2 sums{};
      for (int i = 0; i < share_; ++i) {
        const float2 own = shared.moments[row][i];
        sums = {sums.x + own.x, sums.y + own.y};
      }
      const float first = norm.rms ? 0.0f : to_float(from_[int64_t{row} * inputs_]);
      const float distance = norm.rms ? 0.0f : sums.x * part;
      const float mean = first + distance, variance = sums.y * part - distance * distance;
      const float factor = rsqrtf((variance < 0.0f ? 0.0f : variance) + norm.eps);
      for (int k = begin_; k < inputs_; k += step_) {
        uint4& bits = *reinterpret_cast<uint4*>(to_ + row * stride_ + k);
        uint4 piece = bits;
        apply(piece, mean, factor, gamma + k, beta + k);
        bits = piece;
        if (k / kPiece % gridDim.y != blockIdx.y) continue;  // blocks of the same rows share them
        *reinterpret_cast<uint4*>(normed + int64_t{first_ + row} * inputs_ + k) = piece;
      }
    });
  }

 private:
  static constexpr int kBatch = 4;  // pieces that are loaded at a time

  template <typename F>
  __device__ __forceinline__ void for_rows(const F& f) const {
#pragma unroll 1
    for (int row = threadIdx.x / kWarp / share_; row < rows_; row += kWarps / share_) f(row);
  }

  __device__ __forceinline__ uint4 piece(const T* from, int k) const {
    return k < inputs_ ? *reinterpret_cast<const uint4*>(from + k) : uint4{};
  }

  __device__ __forceinline__ static void add(const uint4& piece, float first, float2& sums) {
    for (const uint32_t pair : {piece.x, piece.y, piece.z, piece.w}) {
      const float2 values = unpack<T>(pair);
      const float a = values.x - first, b = values.y - first;
      sums = {sums.x + a + b, fmaf(a, a, fmaf(b, b, sums.y))};
    }
  }

  __device__ __forceinline__ static void apply(uint4& piece, float mean, float factor,
                                               const float* gamma, const float* beta) {
    uint32_t* const pairs[] = {&piece.x, &piece.y, &piece.z, &piece.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 scale = *reinterpret_cast<const float2*>(gamma + 2 * i);
      const float2 shift = *reinterpret_cast<const float2*>(beta + 2 * i);
      const float2 values = unpack<T>(*pairs[i]);
      *pairs[i] = pack<T>({fmaf(values.x - mean, factor * scale.x, shift.x),
                           fmaf(values.y - mean, factor * scale.y, shift.y)});
    }
  }

  const int rows_, share_, rank_, begin_, step_, inputs_, stride_, first_;
  const T* from_;
  T* to_;
};

}  // namespace decoding::cuda::gemm_streamed
