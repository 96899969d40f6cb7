// y = norm(x) + residual, over the last axis; the work is row.cuh's.
#include "kernels/cuda/row_norm.cuh"
#include "kernels/norm.h"

namespace decoding {
namespace {

template <int pack, typename T>
void norm_rows(cuda::Stream& stream, const LayerNormParams<T>& p) {
  const cuda::LoadRows<T, pack> load{p.x, p.cols};
  if (p.residual != nullptr) {
    const auto op = cuda::row_norm<true>(load, p.norm, p.y, p.cols, p.residual);
    cuda::launch_rows(stream, op, p.rows, p.cols);
  } else {
    cuda::launch_rows(stream, cuda::row_norm(load, p.norm, p.y, p.cols), p.rows, p.cols);
  }
}

}  // namespace

template <typename T>
void layer_norm(cuda::Stream& stream, const LayerNormParams<T>& p) {
  if (p.rows == 0) return;
  const bool aligned = cuda::aligned16<T>(p.x, p.cols) && cuda::aligned16<T>(p.y, p.cols) &&
                       cuda::aligned16<T>(p.residual, p.cols) && cuda::aligned16(p.norm);
  aligned ? norm_rows<16 / sizeof(T)>(stream, p) : norm_rows<1>(stream, p);
}

#define INSTANTIATE(T) template void layer_norm(cuda::Stream&, const LayerNormParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
