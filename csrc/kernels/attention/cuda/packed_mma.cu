// Packed attention by the tensor cores' instructions of a warp.
#include "kernels/attention/cuda/packed_kernel.cuh"

namespace decoding {
namespace cuda {
namespace {

template <int dim, int squares>
struct Mma {
  static constexpr int kDim = dim, kSquares = squares, kWarps = 4;
  static constexpr int kKeys = dim <= 128 ? 64 : 32;           // of a tile, as registers allow
  static constexpr int kTogether = 16 * squares;               // queries whose warps go together
  static constexpr int kBlocks = dim * squares <= 64 ? 3 : 2;  // that a multiprocessor runs
  template <typename T>
  using Rows = PaddedRows<T, dim>;

  __device__ static void see_copies() {}

  template <typename T>
  __device__ __forceinline__ static void multiply_keys(float (&scores)[squares][kKeys / 8][4],
                                                       const Queries<Mma, T> (&queries)[squares],
                                                       const Rows<T>& k) {
#pragma unroll
    for (int d = 0; d < dim / 16; ++d) {
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];
        load_matrices(b, by_columns(k, n * 16, d * 16));
#pragma unroll
        for (int s = 0; s < squares; ++s) {
          const auto& a = queries[s].q[d];
          multiply_add<T>(scores[s][2 * n], a[0], a[1], a[2], a[3], b[0], b[1]);
          multiply_add<T>(scores[s][2 * n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
        }
      }
    }
  }

  template <typename T>
  __device__ __forceinline__ static void add_values(Queries<Mma, T> (&queries)[squares],
                                                    const float (&weights)[squares][kKeys / 8][4],
                                                    const Rows<T>& v) {
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      uint32_t a[squares][4];
#pragma unroll
      for (int s = 0; s < squares; ++s) pack_weights<T>(a[s], weights[s], n);
#pragma unroll
      for (int d = 0; d < dim / 16; ++d) {
        uint32_t b[4];
        load_transposed(b, by_rows(v, n * 16, d * 16));
#pragma unroll
        for (int s = 0; s < squares; ++s) {
          auto& sums = queries[s].sums;
          multiply_add<T>(sums[2 * d], a[s][0], a[s][1], a[s][2], a[s][3], b[0], b[1]);
          multiply_add<T>(sums[2 * d + 1], a[s][0], a[s][1], a[s][2], a[s][3], b[2], b[3]);
        }
      }
    }
  }
};

}  // namespace

template <bool with_bias, typename T, typename Keys>
void attend_with_mma(Stream& stream, const PackedAttentionParams<T, Keys>& p) {
  // Twice the queries read keys and values half as often, where there are blocks enough, or keys to
  // split over them.
  const int64_t blocks = static_cast<int64_t>(p.heads) * p.sentences * ((p.longest + 127) / 128);
  const bool splits = stream.device().hopper() && p.longest > 64 && most_keys(p) >= kManyKeys;
  const bool many =
      !stream.deterministic() && (splits || blocks > 4 * stream.device().multiprocessors);
  if constexpr (!kIsFloat8<NumberOf<decltype(p.keys.of(p, 0, 0))>>) {  // of which there are less
    if (p.head_dim <= 32) {
      return many ? start<with_bias, Mma<32, 2>>(stream, p)
                  : start<with_bias, Mma<32, 1>>(stream, p);
    }
    if (p.head_dim > 64 && p.head_dim <= 96) return start<with_bias, Mma<96, 1>>(stream, p);
  }
  if (p.head_dim <= 64) {
    many ? start<with_bias, Mma<64, 2>>(stream, p) : start<with_bias, Mma<64, 1>>(stream, p);
  } else if (p.head_dim <= 128) {
    start<with_bias, Mma<128, 1>>(stream, p);
  } else {
    start<with_bias, Mma<kMaxHeadDim, 1>>(stream, p);
  }
}

#define INSTANTIATE(with_bias, T)                                                          \
  template void attend_with_mma<with_bias>(Stream&, const PackedAttentionParams<T>&);      \
  template void attend_with_mma<with_bias>(Stream&,                                        \
                                           const PackedAttentionParams<T, PagedKeys<T>>&); \
  template void attend_with_mma<with_bias>(Stream&,                                        \
                                           const PackedAttentionParams<T, PagedKeys<Float8>>&);
INSTANTIATE(false, half)
INSTANTIATE(false, bfloat16)
INSTANTIATE(true, half)
INSTANTIATE(true, bfloat16)

}  // namespace cuda
}  // namespace decoding
