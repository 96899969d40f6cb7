// y = norm(scale * tokens[ids] + table[positions]) in one kernel. With the norm it is a layer norm
// whose rows are gathered on their way in (row.cuh); without it, one block copies each row.
#include "kernels/rows/cuda/row_norm.cuh"
#include "kernels/rows/embed.h"

namespace decoding {
namespace cuda {
namespace {

template <typename T, int pack>
struct LoadEmbedding {
  static constexpr int kPack = pack;
  using Columns = Nothing;
  struct Raw {
    Packed<T, pack> token, position;  // 0 where another rank has the token
  };
  const int32_t* ids;        // [rows]
  const int32_t* positions;  // [rows]
  const T* token_table;      // [V, hidden]
  const T* position_table;   // [positions, hidden], may be null
  int first_token, tokens;   // of the table
  int hidden;
  float scale;

  __device__ __forceinline__ Columns columns(int) const { return {}; }
  __device__ __forceinline__ Raw fetch(int row, int col) const {
    Raw raw{};
    const int token = ids[row] - first_token;
    if (token < 0 || token >= tokens) return raw;
    raw.token = raw.token.load(token_table + int64_t{token} * hidden + col);
    if (position_table != nullptr) {
      raw.position = raw.position.load(position_table + int64_t{positions[row]} * hidden + col);
    }
    return raw;
  }
  __device__ __forceinline__ void values(int, int, const Raw& raw, const Columns&,
                                         float (&x)[pack]) const {
    float position[pack];
    raw.token.unpack(x);
    raw.position.unpack(position);
#pragma unroll
    for (int i = 0; i < pack; ++i) x[i] = fmaf(scale, x[i], position[i]);
  }
};

template <typename T, int pack>
__global__ void embed_kernel(const LoadEmbedding<T, pack> load, const StoreRows<T, pack> y) {
  wait_for_previous();
  let_next_start();
  for (int col = threadIdx.x * pack; col < load.hidden; col += blockDim.x * pack) {
    float x[pack];
    load.values(blockIdx.x, col, load.fetch(blockIdx.x, col), {}, x);
    y.store(blockIdx.x, col, {}, {}, x);
  }
}

template <int pack, typename T>
void embed_rows(Stream& stream, const EmbedParams<T>& p) {
  const LoadEmbedding<T, pack> load{.ids = p.ids,
                                    .positions = p.positions,
                                    .token_table = static_cast<const T*>(p.tokens.data),
                                    .position_table = p.position_table,
                                    .first_token = p.tokens.first,
                                    .tokens = p.tokens.count,
                                    .hidden = p.hidden,
                                    .scale = p.scale};
  if (p.norm.gamma == nullptr) {
    const int pieces = (p.hidden + pack - 1) / pack;
    const int threads = std::min(256, (pieces + int{kWarp} - 1) / int{kWarp} * int{kWarp});
    const StoreRows<T, pack> y{p.y, p.hidden};
    launch(stream, embed_kernel<T, pack>, p.rows, threads, 0, load, y);
  } else {
    launch_rows(stream, row_norm(load, p.norm, p.y, p.hidden), p.rows, p.hidden);
  }
}

}  // namespace
}  // namespace cuda

template <typename T>
void embed(cuda::Stream& stream, const EmbedParams<T>& p) {
  if (p.rows == 0) return;
  const bool aligned = cuda::aligned16<T>(static_cast<const T*>(p.tokens.data), p.hidden) &&
                       cuda::aligned16<T>(p.position_table, p.hidden) &&
                       cuda::aligned16<T>(p.y, p.hidden) && cuda::aligned16(p.norm);
  aligned ? cuda::embed_rows<16 / sizeof(T)>(stream, p) : cuda::embed_rows<1>(stream, p);
}

#define INSTANTIATE(T) template void embed(cuda::Stream&, const EmbedParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
