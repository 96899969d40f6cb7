// Packed attention by Hopper's matrix instruction (FlashAttention-3's choice, Shah et al. 2024):
// four warps multiply 64 queries, which they hold in registers, by a tile of keys, and their
// weights by the tile's values as these lie in memory. While one group of warps finds weights,
// others multiply. Only on compute capability 9.0, from code for it alone.
//
// Not for heads of 64: there ptxas before CUDA 13.1 gives the weights the registers of the queries,
// which the next tile needs.
#include "kernels/attention/cuda/packed_kernel.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace decoding {
namespace cuda {
namespace {

// groups: of four warps.
template <int dim, int groups>
struct Wgmma {
  static constexpr int kDim = dim, kSquares = 1, kWarps = 4 * groups;
  static constexpr int kKeys = 64;      // of a tile
  static constexpr int kTogether = 64;  // queries whose warps go together
  static constexpr int kBlocks = 1;     // that a multiprocessor runs
  template <typename T>
  using Rows = SwizzledRows<T, dim>;

  __device__ static void see_copies() { wgmma_see_copies(); }

  template <typename T>
  __device__ __forceinline__ static void multiply_keys(float (&scores)[1][kKeys / 8][4],
                                                       Queries<Wgmma, T> (&queries)[1],
                                                       const Rows<T>& k) {
    auto& q = queries[0].q;
    wgmma_begin(q, scores[0]);
#pragma unroll
    for (int d = 0; d < dim / 16; ++d) wgmma<T>(scores[0], q[d], k.tile(0, d * 16));
    wgmma_close();
    wgmma_wait<0>(scores[0]);
  }

  template <typename T>
  __device__ __forceinline__ static void add_values(Queries<Wgmma, T> (&queries)[1],
                                                    const float (&weights)[1][kKeys / 8][4],
                                                    const Rows<T>& v) {
    auto& sums = queries[0].sums;
    uint32_t w[kKeys / 16][4];
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) pack_weights<T>(w[n], weights[0], n);
    wgmma_begin(w, sums);
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
#pragma unroll
      for (int d = 0; d < dim; d += 64) {
        auto& part = reinterpret_cast<float (&)[8][4]>(sums[d / 8]);
        wgmma_transposed<T>(part, w[n], v.tile(n * 16, d));
      }
    }
    wgmma_close();
    wgmma_wait<0>(sums);
  }
};

}  // namespace

template <bool with_bias, typename T, typename Keys>
bool attend_with_wgmma(Stream& stream, const PackedAttentionParams<T, Keys>& p) {
  if (stream.device().capability != 90 || stream.device().code != 90) return false;
  if (p.head_dim <= 96 || p.head_dim > 128) return false;
  // Two groups read keys and values half as often, where there are blocks enough, or keys to split
  // over them.
  const int64_t blocks = static_cast<int64_t>(p.heads) * p.sentences * ((p.longest + 127) / 128);
  const bool enough = most_keys(p) >= kManyKeys || blocks > 2 * stream.device().multiprocessors;
  const bool many = !stream.deterministic() && p.longest > 64 && enough;
  many ? start<with_bias, Wgmma<128, 2>>(stream, p) : start<with_bias, Wgmma<128, 1>>(stream, p);
  return true;
}

#define INSTANTIATE(with_bias, T)                                                       \
  template bool attend_with_wgmma<with_bias>(Stream&, const PackedAttentionParams<T>&); \
  template bool attend_with_wgmma<with_bias>(Stream&,                                   \
                                             const PackedAttentionParams<T, PagedKeys<T>>&);
INSTANTIATE(false, half)
INSTANTIATE(false, bfloat16)
INSTANTIATE(true, half)
INSTANTIATE(true, bfloat16)

}  // namespace cuda
}  // namespace decoding
