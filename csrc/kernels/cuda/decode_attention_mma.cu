// On tensor cores. One block serves up to 8 beams of a (sentence, head): they are rows of the first
// operand, of which a product has 16. The history is cut into tiles of 16 positions: a shared tile,
// which all beams look at, is read once for all; a tile of one beam's own positions goes the same
// way, with its scores hidden from the other rows. So does the newest position, as a last tile
// that holds a row for each beam. Warps take turns at tiles, each with an online softmax of its
// own; these are merged over warps and, where a long history is split, over blocks (flash
// decoding, Dao et al. 2023).
//
// A warp's tiles arrive in shared memory without its help. Two are asked for before the previous
// kernel has ended, and each later one when its place is free; where its rows lie, the indirection
// table says one turn ahead. Only the queries and the newest position stem from the previous
// kernel.
#include <cstdint>

#include "kernels/cuda/decode_attention.cuh"
#include "kernels/cuda/decode_attention_tiles.cuh"
#include "kernels/cuda/fused_linear_mma.cuh"

namespace decoding {
namespace cuda {
namespace {

// The online softmax of the beams in one warp: lanes 4g to 4g + 3 have beam g, and of every 8
// elements two each. Scores are in units of log 2.
template <typename T, int dim>
class Softmax {
 public:
  __device__ __forceinline__ Softmax(const DecodeAttentionParams<T>& p, const Share& share)
      : scale_(p.scale * kLog2e) {
    const T* q = p.q + (share.row + row()) * p.stride + share.head * p.head_dim + column();
#pragma unroll
    for (int i = 0; i < dim / 8; ++i) {
      q_[i] = load_number(reinterpret_cast<const int32_t*>(q + i * 8),
                          row() < share.count && i * 8 < p.head_dim);
    }
  }

  // beam: of the tile, or kAll or kEach; seen: how many of its positions there are.
  __device__ __forceinline__ void attend(Place<dim> tile, int beam, int seen) {
    const int lane = threadIdx.x % kWarp;
    float scores[2][4] = {};
#pragma unroll
    for (int d = 0; d < dim / 16; ++d) {
      uint32_t k[4];
      load_matrices(k, tile.at(lane / 16 * 8 + lane % 8, 2 * d + lane / 8 % 2));
      multiply_add<T>(scores[0], q_[2 * d], 0, q_[2 * d + 1], 0, k[0], k[1]);
      multiply_add<T>(scores[1], q_[2 * d], 0, q_[2 * d + 1], 0, k[2], k[3]);
    }
    const bool mine = beam == kAll || beam == row();
    float top = maximum_;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = i / 2 * 8 + column() + i % 2;
      const bool visible = beam == kEach ? position == row() : mine && position < seen;
      float& score = scores[i / 2][i % 2];
      score = visible ? score * scale_ : kNoScore;
      top = fmaxf(top, score);
    }
    rescale(warp_max<4>(top));
    uint32_t weights[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 pair = {power_of_two(scores[h][0] - reference(maximum_)),
                           power_of_two(scores[h][1] - reference(maximum_))};
      total_ += pair.x + pair.y;
      weights[h] = pack<T>(pair);
    }
#pragma unroll
    for (int d = 0; d < dim / 16; ++d) {
      uint32_t v[4];
      load_transposed(v, tile.at(lane % 16, 2 * d + lane / 16) + Place<dim>::kValues);
      multiply_add<T>(sums_[2 * d], weights[0], 0, weights[1], 0, v[0], v[1]);
      multiply_add<T>(sums_[2 * d + 1], weights[0], 0, weights[1], 0, v[2], v[3]);
    }
  }

  // What a warp has found, as its lanes have it: sums, maxima, totals.
  static constexpr int kPartSize = (dim / 8 + 1) * 2 * kWarp;  // floats
  __device__ __forceinline__ void store_part(float* part) const {
    float2* to = reinterpret_cast<float2*>(part) + threadIdx.x % kWarp;
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) to[n * kWarp] = {sums_[n][0], sums_[n][1]};
    to[dim / 8 * kWarp] = {maximum_, total_};
  }
  // Adds the parts of `count` warps, `stride` floats apart.
  __device__ __forceinline__ void add_parts(const float* parts, int count, int stride) {
    const auto element = [&](int w, int n) {
      return reinterpret_cast<const float2*>(parts + w * stride)[n * kWarp + threadIdx.x % kWarp];
    };
    float top = maximum_;
#pragma unroll 4
    for (int w = 0; w < count; ++w) top = fmaxf(top, element(w, dim / 8).x);
    rescale(top);
#pragma unroll 2
    for (int w = 0; w < count; ++w) {
      const float2 found = element(w, dim / 8);
      const float weight = power_of_two(found.x - reference(top));
      total_ = fmaf(weight, found.y, total_);
#pragma unroll
      for (int n = 0; n < dim / 8; ++n) add(n, weight, element(w, n));
    }
  }

  // What a block has found, [beams, head_dim + 2].
  __device__ __forceinline__ void store_partial(float* partial, int count, int head_dim) const {
    const float total = warp_sum<4>(total_);
    if (row() >= count) return;
    float* to = partial + row() * (head_dim + 2);
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) {
      if (n * 8 >= head_dim) break;
      *reinterpret_cast<float2*>(to + n * 8 + column()) = {sums_[n][0], sums_[n][1]};
    }
    if (column() == 0) *reinterpret_cast<float2*>(to + head_dim) = {maximum_, total};
  }
  // Begins afresh with those of `blocks` blocks, `stride` floats apart.
  __device__ __forceinline__ void load_partials(const float* partial, int blocks, int stride,
                                                int count, int head_dim) {
    const float* from = partial + (row() < count ? row() : 0) * (head_dim + 2);
    maximum_ = kNoScore;
    for (int i = 0; i < blocks; ++i) maximum_ = fmaxf(maximum_, from[i * stride + head_dim]);
    total_ = 0;
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) sums_[n][0] = sums_[n][1] = 0;
    for (int i = 0; i < blocks; ++i) {
      const float* block = from + i * stride;
      const float weight = power_of_two(block[head_dim] - reference(maximum_));
      if (column() == 0) total_ = fmaf(weight, block[head_dim + 1], total_);
#pragma unroll
      for (int n = 0; n < dim / 8; ++n) {
        if (n * 8 >= head_dim) break;
        add(n, weight, *reinterpret_cast<const float2*>(block + n * 8 + column()));
      }
    }
  }

  __device__ __forceinline__ void write(const DecodeAttentionParams<T>& p,
                                        const Share& share) const {
    const float total = warp_sum<4>(total_);
    if (row() >= share.count) return;
    const float normaliser = total == 0 ? 0.0f : 1.0f / total;
    T* y = p.y + ((share.row + row()) * p.heads + share.head) * p.head_dim + column();
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) {
      if (n * 8 >= p.head_dim) break;
      *reinterpret_cast<uint32_t*>(y + n * 8) =
          pack<T>({sums_[n][0] * normaliser, sums_[n][1] * normaliser});
    }
  }

 private:
  __device__ static int row() { return threadIdx.x % kWarp / 4; }
  __device__ static int column() { return threadIdx.x % 4 * 2; }

  __device__ __forceinline__ void rescale(float top) {
    const float factor = power_of_two(maximum_ - reference(top));
    maximum_ = top;
    total_ *= factor;
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) sums_[n][0] *= factor, sums_[n][1] *= factor;
  }
  __device__ __forceinline__ void add(int n, float weight, float2 pair) {
    sums_[n][0] = fmaf(weight, pair.x, sums_[n][0]);
    sums_[n][1] = fmaf(weight, pair.y, sums_[n][1]);
  }

  const float scale_;
  uint32_t q_[dim / 8];
  float sums_[dim / 8][4] = {};           // of the weighted values; rows from 8 on stay 0
  float maximum_ = kNoScore, total_ = 0;  // total: of the lane's own positions
};

template <typename T, int dim>
__global__ void __launch_bounds__(kMaxWarps* kWarp, dim == 64 ? 2 : 1)
    decode_attention_kernel(const DecodeAttentionParams<T> p) {
  using P = Place<dim>;
  static_assert(Softmax<T, dim>::kPartSize * sizeof(float) <= kAhead * P::kBytes);
  // A tile for the newest positions, and kAhead for each warp.
  extern __shared__ __align__(128) char memory[];
  const Share share(p, kMostBeams);
  const Tiles<T, dim> tiles(p, share);
  if (!share.exists || tiles.warp >= tiles.active) {
    wait_for_previous();  // else this kernel might be over, and its successor start, before that
    return;
  }
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const P newest{base};
  const auto place = [&](int i) {
    return P{base + (1 + tiles.warp * kAhead + i % kAhead) * P::kBytes};
  };
  const int first = tiles.look_up(0), second = tiles.look_up(1);
  tiles.request(0, first, place(0));
  tiles.request(1, second, place(1));
  int holder = tiles.look_up(kAhead);
  wait_for_previous();
  let_next_start();

  Softmax<T, dim> softmax(p, share);
  const bool has_newest = p.k != nullptr && share.split == 0 && tiles.warp == 0;
  if (has_newest) tiles.request_newest(newest);
  for (int i = 0; i < tiles.count; ++i) {
    wait_for_copies<kAhead - 1>();
    __syncwarp();
    const auto tile = tiles.tile(i);
    softmax.attend(place(i), tile.beam, tiles.length(tile) - tile.first);
    __syncwarp();
    tiles.request(i + kAhead, holder, place(i));
    holder = tiles.look_up(i + kAhead + 1);
  }
  if (has_newest) {
    wait_for_copies<0>();
    __syncwarp();
    softmax.attend(newest, kEach, 0);
    tiles.keep_newest(newest);
  }
  if (tiles.active > 1) {
    float* parts = reinterpret_cast<float*>(memory + P::kBytes);
    constexpr int kStride = kAhead * P::kBytes / sizeof(float);
    if (tiles.warp > 0) softmax.store_part(parts + tiles.warp * kStride);
    synchronize(tiles.active);
    if (tiles.warp > 0) return;
    softmax.add_parts(parts + kStride, tiles.active - 1, kStride);
  }
  if (share.splits > 1) {
    const int size = p.head_dim + 2;
    float* partial = share.partial(p);
    softmax.store_partial(partial + share.split * p.beams * size, share.count, p.head_dim);
    if (!last_to_arrive(share.ticket(p), share.splits)) return;
    softmax.load_partials(partial, share.splits, p.beams * size, share.count, p.head_dim);
  }
  softmax.write(p, share);
}

}  // namespace

template <typename T>
void decode_with_tensor_cores(Stream& stream, const DecodeAttentionParams<T>& p) {
  const auto run = [&]<int dim>() {
    start(stream, decode_attention_kernel<T, dim>, p, kMostBeams, 1,
          [](int warps) { return size_t(1 + warps * kAhead) * Place<dim>::kBytes; });
  };
  p.head_dim <= 64 ? run.template operator()<64>() : run.template operator()<128>();
}

template void decode_with_tensor_cores(Stream&, const DecodeAttentionParams<half>&);
template void decode_with_tensor_cores(Stream&, const DecodeAttentionParams<bfloat16>&);

}  // namespace cuda
}  // namespace decoding
