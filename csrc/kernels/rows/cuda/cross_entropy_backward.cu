// Every thread goes through its columns 16 bytes at a time, a few loads ahead, and writes where it
// has read. Rows come in falling order: the last ones that the loss has read are still in the
// cache.
#include "kernels/rows/cross_entropy.h"
#include "kernels/rows/cuda/log_sum.cuh"
#include "kernels/rows/cuda/targets.cuh"

namespace decoding {
namespace cuda {
namespace {

// The gradient of a row: factor exp(x[c] - peak) - spread w[c], less `wanted` at the label.
template <typename T>
struct RowGradient {
  float factor, peak, spread, wanted;
  const float* weight;  // null where all spread the same
  int label;

  __device__ __forceinline__ RowGradient(const CrossEntropyBackwardParams<T>& p, int r,
                                         int64_t label)
      : label(static_cast<int>(label)) {
    const Targets<float>& targets = p.targets;
    const float* softmax = p.softmax + 2 * int64_t{r};
    const float upstream = p.upstream[p.each ? r : 0] / (p.count != nullptr ? *p.count : 1.0f);
    wanted = upstream * (1.0f - targets.smoothing) * targets.weight_of(label);
    const bool smooth = targets.smoothing != 0.0f;
    spread = smooth ? upstream * targets.smoothing / targets.classes : 0.0f;
    weight = smooth ? targets.weight : nullptr;
    const float all = smooth ? spread * targets.all_weights() : 0.0f;
    peak = softmax[0];
    factor = (wanted + all) / softmax[1];
  }

  // Turns the logits of neighbouring columns from `c` on into it.
  template <int count>
  __device__ __forceinline__ void apply(int c, float (&x)[count]) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      x[i] = fmaf(factor, exponential<T>(x[i] - peak), weight == nullptr ? -spread : 0.0f);
    }
    if (weight != nullptr) {
#pragma unroll
      for (int i = 0; i < count; ++i) x[i] -= spread * weight[c + i];
    }
    if (static_cast<unsigned>(label - c) >= static_cast<unsigned>(count)) return;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (c + i == label) x[i] -= wanted;
    }
  }
};

// The columns of a row that one of `size` threads is to write.
struct ColumnRange {
  int begin, end;  // packs of the thread's group
  bool loose;      // whether the group has the loose columns too
  int rank, size;
};

template <typename T>
__device__ __forceinline__ void write_gradient(const T* x, T* dx, const Pieces<T>& pieces,
                                               const ColumnRange& range,
                                               const RowGradient<T>& gradient) {
  using Pack = typename Pieces<T>::Pack;
  for (int first = range.begin + range.rank; first < range.end; first += kAhead * range.size) {
    Pack loaded[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = first + a * range.size;
      if (i < range.end) loaded[a] = Pack::load(x + pieces.col(i));
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int i = first + a * range.size;
      if (i >= range.end) break;
      float values[Pieces<T>::kPack];
      loaded[a].unpack(values);
      gradient.apply(pieces.col(i), values);
      Pack::of(values).store(dx + pieces.col(i));
    }
  }
  for (int i = range.rank; range.loose && i < pieces.loose; i += range.size) {
    const int c = pieces.loose_col(i);
    float value[1] = {to_float(x[c])};
    gradient.apply(c, value);
    dx[c] = from_float<T>(value[0]);
  }
}

template <typename T>
__device__ __forceinline__ void write_zeros(T* dx, const Pieces<T>& pieces,
                                            const ColumnRange& range) {
  for (int i = range.begin + range.rank; i < range.end; i += range.size) {
    *reinterpret_cast<uint4*>(dx + pieces.col(i)) = {};
  }
  for (int i = range.rank; range.loose && i < pieces.loose; i += range.size) {
    dx[pieces.loose_col(i)] = from_float<T>(0.0f);
  }
}

// `threads` write a row, or one of its parts. packed: whether x and dx lie alike on 16 bytes.
template <int threads, typename T>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_backward_kernel(const CrossEntropyBackwardParams<T> p, int parts, bool packed) {
  wait_for_previous();
  let_next_start();
  const Targets<float>& targets = p.targets;
  const int group = blockIdx.x * (kRowThreads / threads) + threadIdx.x / threads;
  const int r = targets.rows - 1 - group / parts, part = group % parts;
  if (r < 0) return;
  const T* x = p.x + int64_t{r} * targets.classes;
  T* dx = p.dx + int64_t{r} * targets.classes;
  const Pieces<T> pieces(x, targets.classes, packed);
  const int each = (pieces.packs + parts - 1) / parts;
  const ColumnRange range{.begin = part * each,
                          .end = min((part + 1) * each, pieces.packs),
                          .loose = part == 0,
                          .rank = static_cast<int>(threadIdx.x) % threads,
                          .size = threads};
  const int64_t label = targets.labels[r];
  if (is_class(targets, label)) {
    write_gradient(x, dx, pieces, range, RowGradient<T>(p, r, label));
  } else {
    write_zeros(dx, pieces, range);
  }
}

// A block has up to 64 KiB of a row, so that blocks are many; less where rows are few.
template <typename T>
int parts_of(const Stream& stream, const Targets<float>& targets) {
  constexpr int kMost = 4096, kLeast = kAhead * kRowThreads;  // packs
  const int packs = targets.classes / Pieces<T>::kPack;
  const int wanted = 8 * stream.device().multiprocessors / targets.rows;
  return std::max({1, (packs + kMost - 1) / kMost, std::min(packs / kLeast, wanted)});
}

template <int threads, typename T>
void start(Stream& stream, const CrossEntropyBackwardParams<T>& p) {
  const int parts = threads == kRowThreads ? parts_of<T>(stream, p.targets) : 1;
  constexpr int kGroups = kRowThreads / threads;
  const int blocks = (p.targets.rows * parts + kGroups - 1) / kGroups;
  const bool packed =
      (reinterpret_cast<uintptr_t>(p.x) - reinterpret_cast<uintptr_t>(p.dx)) % 16 == 0;
  launch(stream, cross_entropy_backward_kernel<threads, T>, blocks, kRowThreads, 0, p, parts,
         packed);
}

}  // namespace
}  // namespace cuda

template <typename T>
void cross_entropy_backward(cuda::Stream& stream, const CrossEntropyBackwardParams<T>& p) {
  if (p.targets.rows == 0) return;
  cuda::with_row_teams<T>(p.targets.classes, [&]<typename Make>(Make) {
    cuda::start<cuda::kRowThreads / Make::kRows>(stream, p);
  });
}

#define INSTANTIATE(T) \
  template void cross_entropy_backward(cuda::Stream&, const CrossEntropyBackwardParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace decoding
