// y = norm(x) + residual, and norm(dropout(x + bias) + residual), over the last axis; the work is
// row.cuh's.
#include "kernels/rows/cuda/dropout.cuh"
#include "kernels/rows/cuda/row_norm.cuh"
#include "kernels/rows/norm.h"

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

// dropout(x + bias) + residual, rounded to T, which is kept.
template <typename T, int pack>
struct LoadSummed {
  static constexpr int kPack = pack;
  using Columns = cuda::Floats<pack>;  // the bias
  struct Raw {
    cuda::Packed<T, pack> x, residual;
  };
  const T* x;            // [rows, cols]
  const T* residual;     // [rows, cols], may be null
  Weight<const T> bias;  // [cols], may be null
  Dropout dropout;
  T* sum;  // [rows, cols]
  int cols;

  __device__ __forceinline__ Columns columns(int col) const {
    return cuda::load_weight<pack>(bias, col, 0.0f);
  }
  __device__ __forceinline__ Raw fetch(int row, int col) const {
    const int64_t at = int64_t{row} * cols + col;
    Raw raw{};
    raw.x = raw.x.load(x + at);
    if (residual != nullptr) raw.residual = raw.residual.load(residual + at);
    return raw;
  }
  __device__ __forceinline__ void values(int row, int col, const Raw& raw, const Columns& columns,
                                         float (&x)[pack]) const {
    float more[pack];
    raw.x.unpack(x);
    raw.residual.unpack(more);
#pragma unroll
    for (int i = 0; i < pack; ++i) x[i] += columns.values[i];
    cuda::drop(dropout, int64_t{row} * cols + col, x);
#pragma unroll
    for (int i = 0; i < pack; ++i) x[i] += more[i];
    cuda::Packed<T, pack>::of(x).unpack(x);
  }
  __device__ __forceinline__ void keep(int row, int col, const float (&x)[pack]) const {
    cuda::Packed<T, pack>::of(x).store(sum + int64_t{row} * cols + col);
  }
};

template <int pack, typename T>
void training_rows(cuda::Stream& stream, const TrainingNormParams<T>& p) {
  const auto center = cuda::standardize<T>(p.cols, p.eps, p.rms);
  const cuda::StoreAffine<T, pack, false> store{p.gamma,       p.beta, nullptr,
                                                {p.y, p.cols}, p.mean, p.rstd};
  const auto start = [&](const auto& load) {
    using Load = std::decay_t<decltype(load)>;
    using Op = cuda::RowOp<Load, cuda::Standardize<T>, cuda::StoreAffine<T, pack, false>>;
    cuda::launch_rows(stream, Op{load, center, store}, p.rows, p.cols);
  };
  if (p.sum == nullptr) {
    start(cuda::LoadRows<T, pack>{p.x, p.cols});
  } else {
    start(LoadSummed<T, pack>{p.x, p.residual, p.bias, p.dropout, p.sum, p.cols});
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

template <typename T>
void training_norm(cuda::Stream& stream, const TrainingNormParams<T>& p) {
  if (p.rows == 0) return;
  cuda::Stream in_turn = stream.in_turn();
  const auto rows = [&](const void* data) { return cuda::aligned16<T>(data, p.cols); };
  const bool aligned = rows(p.x) && rows(p.residual) && rows(p.sum) && rows(p.y) &&
                       cuda::aligned16(p.bias) && cuda::aligned16(p.gamma) &&
                       cuda::aligned16(p.beta);
  aligned ? training_rows<16 / sizeof(T)>(in_turn, p) : training_rows<1>(in_turn, p);
}

#define INSTANTIATE(T)                                                \
  template void layer_norm(cuda::Stream&, const LayerNormParams<T>&); \
  template void training_norm(cuda::Stream&, const TrainingNormParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
