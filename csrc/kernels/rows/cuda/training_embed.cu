// Embeddings of training, a block for each row.
#include <algorithm>

#include "kernels/cuda/occupancy.cuh"
#include "kernels/rows/cuda/dropout.cuh"
#include "kernels/rows/cuda/row_packed.cuh"
#include "kernels/rows/embed.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 256;  // of a block, at most

// False, and reported to the host, where the table does not have the id.
__device__ __forceinline__ bool has(int64_t id, int rows, bool position, IdFault* fault) {
  if (id >= 0 && id < rows) return true;
  if (fault != nullptr && threadIdx.x == 0) {
    fault->id = id, fault->rows = rows, fault->position = position;
    __threadfence_system();
    *static_cast<volatile int*>(&fault->found) = 1;
  }
  return false;
}

template <int pack, typename T>
__global__ void __launch_bounds__(kThreads) training_embed_kernel(const TrainingEmbedParams<T> p) {
  wait_for_previous();
  let_next_start();
  const int64_t row = blockIdx.x, hidden = p.hidden;
  const int64_t id = p.ids[row];
  const bool placed = p.position_table != nullptr;
  const int64_t index = !placed ? 0 : p.positions != nullptr ? p.positions[row] : row % p.length;
  const bool known =
      has(id, p.vocab, false, p.fault) && (!placed || has(index, p.max_positions, true, p.fault));
  const auto scale = static_cast<float>(p.scale);
  for (int col = threadIdx.x * pack; col < p.hidden; col += blockDim.x * pack) {
    Packed<T, pack> token{}, position{};
    if (known) token = token.load(p.token_table + id * hidden + col);
    if (known && placed) position = position.load(p.position_table + index * hidden + col);
    float x[pack], shift[pack];
    token.unpack(x);
    position.unpack(shift);
#pragma unroll
    for (int i = 0; i < pack; ++i) x[i] = known ? fmaf(scale, x[i], shift[i]) : NAN;
    drop(p.dropout, row * hidden + col, x);
    Packed<T, pack>::of(x).store(p.y + row * hidden + col);
  }
}

template <int pack, typename T>
void start(Stream& stream, const TrainingEmbedParams<T>& p) {
  const int threads = std::min(kThreads, whole_warps(divide_up(p.hidden, pack)));
  launch(stream, training_embed_kernel<pack, T>, p.rows, threads, 0, p);
}

}  // namespace
}  // namespace cuda

template <typename T>
void training_embed(cuda::Stream& stream, const TrainingEmbedParams<T>& p) {
  if (p.rows == 0 || p.hidden == 0) return;
  const auto rows = [&](const void* data) { return cuda::aligned16<T>(data, p.hidden); };
  const bool aligned = rows(p.y) && rows(p.token_table) && rows(p.position_table);
  aligned ? cuda::start<16 / sizeof(T)>(stream, p) : cuda::start<1>(stream, p);
}

#define INSTANTIATE(T) template void training_embed(cuda::Stream&, const TrainingEmbedParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
