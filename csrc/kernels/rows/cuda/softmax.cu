// y = exp(z - max(z)) / sum(exp(z - max(z))) with z = scale * x + bias, over the last axis; the
// work is row.cuh's.
#include "kernels/rows/cuda/row.cuh"
#include "kernels/rows/softmax.h"

namespace decoding {
namespace cuda {
namespace {

template <typename T, int pack>
struct LoadScaled {
  static constexpr int kPack = pack;
  using Columns = Floats<pack>;  // the bias
  using Raw = Packed<T, pack>;
  LoadRows<T, pack> rows;
  const float* bias;  // [cols], may be null
  float scale;

  __device__ __forceinline__ Columns columns(int col) const { return Columns::load(bias, col); }
  __device__ __forceinline__ Raw fetch(int row, int col) const { return rows.fetch(row, col); }
  __device__ __forceinline__ void values(int, int, const Raw& raw, const Columns& columns,
                                         float (&x)[pack]) const {
    raw.unpack(x);
#pragma unroll
    for (int i = 0; i < pack; ++i) x[i] = fmaf(scale, x[i], columns.values[i]);
  }
};

// A row of -inf takes exp(-inf - -inf) and becomes NaN; so does one with NaN or +inf.
struct Exponentials {
  using First = Max;
  static constexpr int kSums = 1;

  __device__ __forceinline__ static bool has_center() { return true; }
  __device__ __forceinline__ static float center(float maximum) { return maximum; }
  __device__ __forceinline__ static void weigh(float& x, float maximum, float (&sums)[1]) {
    x = expf(x - maximum);
    sums[0] += x;
  }
  __device__ __forceinline__ static Line line(const float (&sums)[1]) {
    return {1.0f / sums[0], 0.0f};
  }
};

template <int pack, typename T>
void softmax_rows(Stream& stream, const SoftmaxParams<T>& p) {
  using Op = RowOp<LoadScaled<T, pack>, Exponentials, StoreRows<T, pack>>;
  launch_rows(stream, Op{{{p.x, p.cols}, p.bias, p.scale}, {}, {p.y, p.cols}}, p.rows, p.cols);
}

}  // namespace
}  // namespace cuda

template <typename T>
void softmax(cuda::Stream& stream, const SoftmaxParams<T>& p) {
  if (p.rows == 0) return;
  const bool aligned = cuda::aligned16<T>(p.x, p.cols) && cuda::aligned16<T>(p.y, p.cols) &&
                       cuda::aligned16<float>(p.bias, 0);
  aligned ? cuda::softmax_rows<16 / sizeof(T)>(stream, p) : cuda::softmax_rows<1>(stream, p);
}

#define INSTANTIATE(T) template void softmax(cuda::Stream&, const SoftmaxParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
