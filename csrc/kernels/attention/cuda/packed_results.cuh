// What a block does with what its warps have found for its queries.
#pragma once

#include <cstdint>

#include "kernels/attention/cuda/packed.cuh"
#include "kernels/attention/cuda/packed_softmax.cuh"
#include "kernels/attention/cuda/packed_split.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace decoding::cuda {

// By the first `threads` of a block, of which the others have ended. own: the warp's first query in
// the block; split: of the keys; memory: the block's, which is used anew; rows: of its beginning.
template <bool with_bias, int queries, int threads, int dim, int squares, typename T, typename Keys,
          typename Rows>
__device__ __forceinline__ void store_results(const PackedAttentionParams<T, Keys>& p,
                                              const OnlineSoftmax<dim> (&found)[squares], int own,
                                              const Sentence& sentence, const View<with_bias>& view,
                                              const KeySplit& split, int parts, char* memory,
                                              const Rows& rows) {
  bool finite = true;
#pragma unroll
  for (int s = 0; s < squares; ++s) finite &= found[s].finite();
  const bool broken = __syncthreads_or(!finite) && view.differs();
  if (split.parts > 1) {
    using Found = Partial<queries, dim>;
    Found& partial = *reinterpret_cast<Found*>(memory);
#pragma unroll
    for (int s = 0; s < squares; ++s) found[s].store_partial(partial, own + s * 16);
    if (threadIdx.x == 0) partial.broken = broken;
    sync_cluster();
    if (any_broken(partial, split.parts)) {
      attend_one_by_one<with_bias, queries, threads>(p, parts, split.parts);
    } else {
      store_sum<threads>(p, partial, sentence, split.parts, with_bias ? kLog2e : p.scale * kLog2e);
    }
    return sync_cluster();  // the others have read what this block has found
  }
  if (broken) return attend_one_by_one<with_bias, queries, threads>(p, parts, 1);
  const Rows results = rows.from(own);
#pragma unroll
  for (int s = 0; s < squares; ++s) found[s].template store<T>(results.from(s * 16));
  __syncwarp();
  constexpr int kPieces = dim / 8;
  const int query = sentence.begin + own;
  for (int i = threadIdx.x % kWarp; i < squares * 16 * kPieces; i += kWarp) {
    const int row = i / kPieces, d = i % kPieces * 8;
    if (query + row >= sentence.length || d >= p.head_dim) continue;
    T* to = p.y + ((sentence.row + query + row) * p.heads + sentence.head) * p.head_dim + d;
    const char* from = memory + (results.at(row, d) - rows.address);
    Vector<T>::load(reinterpret_cast<const T*>(from)).store(to);
  }
}

}  // namespace decoding::cuda
