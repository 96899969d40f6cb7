// The products of a quantized weight in gemm_wgmma.cu.
//
// A group of warps loads its bytes of a step by ldmatrix, which gives a lane four bytes of each row
// of 16: in the order of linear.h its part of a product of 16 inputs, whose first factor may be in
// registers. They are widened two products at a time, while the tensor cores multiply the two
// before; so these never wait for the end of a step.
#pragma once

#include "kernels/linear/cuda/gemm_wgmma.cuh"
#include "kernels/linear/cuda/quantized/widen.cuh"

namespace decoding::cuda::gemm_wgmma {

constexpr int kProducts = 2;  // that are widened at a time

// A lane's part of a group's bytes: for each tile of 64 outputs two times two products, and of each
// product rows g and g + 8 of the warp's 16.
template <typename S>
class Bytes {
 public:
  __device__ __forceinline__ Bytes(const Shared<S>& shared, int slice, int group) {
    const int lane = threadIdx.x % kWarp, row = threadIdx.x % kGroup / kWarp * 16 + lane % 16;
    const int across = S::kSplits == 2 ? 0 : group * S::kTiles;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      from_[half] = shared_address(shared.tiles.w[0][slice]) +
                    (across * kTileColumns + row) * kLineBytesOf<typename S::W> +
                    chunk_place<typename S::W>(kProducts * half + lane / 16, row) * 16;
      asm volatile("" : "+r"(from_[half]));  // the compiler would compute it in every step
    }
  }

  __device__ __forceinline__ void load(int stage) {
#pragma unroll
    for (int tile = 0; tile < S::kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        load_matrices(at[tile][half], from_[half] + stage * sizeof(Tiles<S>::w[0]) +
                                          tile * kTileColumns * kLineBytesOf<typename S::W>);
      }
    }
  }

  uint32_t at[S::kTiles][2][2 * kProducts];  // of the step that was loaded

 private:
  uint32_t from_[2];
};

// A lane's part of the first factor of the products.
template <typename T, typename W>
__device__ __forceinline__ void widen_products(uint32_t (&to)[kProducts][4],
                                               const uint32_t (&bytes)[2 * kProducts]) {
#pragma unroll
  for (int product = 0; product < kProducts; ++product) {
    const uint2 upper = widen<T, W>(bytes[2 * product]),
                lower = widen<T, W>(bytes[2 * product + 1]);
    to[product][0] = upper.x, to[product][1] = lower.x;
    to[product][2] = upper.y, to[product][3] = lower.y;
  }
}

// sums += all steps.
template <typename T, typename S>
__device__ __forceinline__ void multiply_w8a16(ThreadSums<S>& sums, Shared<S>& shared,
                                               WeightSource<S>& w, Source<T, S::kRows, kThreads>& x,
                                               int steps, int group) {
  const int slice = S::kSplits == 2 ? group : 0;
  Bytes<S> bytes(shared, slice, group);
  int stage = 0, free = S::kAhead;
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<S::kAhead - 1>();
    wgmma_see_copies();
    __syncthreads();  // this step has arrived, and all have multiplied the one before the last
    bytes.load(stage);
    if (step + S::kAhead < steps) {
      request_step(w, shared.tiles.w[free]);
      request_step(x, shared.tiles.x[free]);
    }
    close_copies();
    const uint64_t inputs = wgmma_tile(shared_address(shared.tiles.x[stage][slice]));
#pragma unroll
    for (int tile = 0; tile < S::kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        wgmma_wait<1>();  // the products before the last have read their registers
        uint32_t widened[kProducts][4];
        widen_products<T, typename S::W>(widened, bytes.at[tile][half]);
        wgmma_begin(widened);
#pragma unroll
        for (int product = 0; product < kProducts; ++product) {
          wgmma<T>(sums[tile], widened[product], inputs + 2 * (kProducts * half + product));
        }
        wgmma_close();
      }
    }
    stage = stage == S::kStages - 1 ? 0 : stage + 1;
    free = free == S::kStages - 1 ? 0 : free + 1;
  }
#pragma unroll
  for (int tile = 0; tile < S::kTiles; ++tile) wgmma_wait<0>(sums[tile]);
}

}  // namespace decoding::cuda::gemm_wgmma
