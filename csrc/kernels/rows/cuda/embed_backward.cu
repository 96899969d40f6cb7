// The gradient of embeddings. With an order a block adds up a part of it, a few rows, id by id.
// Where an id's rows reach beyond a part, the sums of its parts go to scratch, and a second kernel
// adds them up in their order: however often an id occurs, many blocks share the work, and the bits
// are the same every time. Without an order rows are added to the table by atomics.
#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/occupancy.cuh"
#include "kernels/rows/cuda/dropout.cuh"
#include "kernels/rows/cuda/row_packed.cuh"
#include "kernels/rows/embed.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 256;  // of a block, at most
constexpr int kAhead = 8;      // rows under way

// Of one part: what it brings to the id that it begins with, where that began before, and to the id
// that it ends with, where that began here and goes on.
enum Partial { kLead, kTail };

template <typename T>
__device__ __forceinline__ float* partial_of(const EmbedBackwardParams<T>& p, Partial which,
                                             int part, int col) {
  return p.partial + (int64_t{which} * embed_parts(p.rows) + part) * p.hidden + col;
}

template <typename T>
__device__ __forceinline__ bool counts(const EmbedBackwardParams<T>& p, int64_t id) {
  return id >= 0 && id < p.vocab && id != p.ignored;
}

template <int pack, typename T>
__device__ __forceinline__ void write(const EmbedBackwardParams<T>& p, int64_t id, int col,
                                      const float (&sum)[pack]) {
  float scaled[pack];
#pragma unroll
  for (int i = 0; i < pack; ++i) scaled[i] = static_cast<float>(p.scale) * sum[i];
  Packed<T, pack>::of(scaled).store(p.dtable + id * p.hidden + col);
}

template <int pack, typename T>
__device__ __forceinline__ void leave(const EmbedBackwardParams<T>& p, Partial which, int part,
                                      int col, const float (&sum)[pack]) {
  float* to = partial_of(p, which, part, col);
#pragma unroll
  for (int i = 0; i < pack; ++i) to[i] = sum[i];
}

template <int pack, typename T>
__global__ void __launch_bounds__(kThreads) add_part_kernel(const EmbedBackwardParams<T> p) {
  // The part's ids, with a neighbour on either side, and its rows.
  __shared__ int64_t ids[kEmbedPart + 2], rows[kEmbedPart];
  wait_for_previous();
  let_next_start();
  const int part = blockIdx.x, begin = part * kEmbedPart;
  const int count = min(kEmbedPart, p.rows - begin), lane = threadIdx.x;
  if (lane < count + 2) {
    const int i = begin + lane - 1;
    ids[lane] = i >= 0 && i < p.rows ? p.ids[i] : INT64_MIN;  // no id, so no neighbour's
    if (lane < count) rows[lane] = p.order[begin + lane];
  }
  __syncthreads();
  for (int col = threadIdx.x * pack; col < p.hidden; col += blockDim.x * pack) {
    float sum[pack] = {};
    bool lead = ids[0] == ids[1];  // whether this id began before
    for (int first = 0; first < count; first += kAhead) {
      Packed<T, pack> ahead[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (first + a < count) ahead[a] = ahead[a].load(p.dy + rows[first + a] * p.hidden + col);
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int i = first + a;
        if (i >= count) break;
        float dy[pack];
        ahead[a].unpack(dy);
        drop(p.dropout, rows[i] * p.hidden + col, dy);
#pragma unroll
        for (int c = 0; c < pack; ++c) sum[c] += dy[c];
        const int64_t id = ids[i + 1];
        const bool goes_on = ids[i + 2] == id;
        if (goes_on && i + 1 < count) continue;
        if (counts(p, id)) {
          lead || goes_on ? leave(p, lead ? kLead : kTail, part, col, sum) : write(p, id, col, sum);
        }
#pragma unroll
        for (int c = 0; c < pack; ++c) sum[c] = 0.0f;
        lead = false;
      }
    }
  }
}

// For the id that began in this part and goes on.
template <int pack, typename T>
__global__ void __launch_bounds__(kThreads) join_parts_kernel(const EmbedBackwardParams<T> p) {
  wait_for_previous();
  let_next_start();
  const int part = blockIdx.x, begin = part * kEmbedPart, end = begin + kEmbedPart;
  if (end >= p.rows) return;
  const int64_t id = p.ids[end - 1];
  const bool lead = begin > 0 && p.ids[begin - 1] == id;
  if (p.ids[end] != id || lead || !counts(p, id)) return;
  int last = part + 1;  // the last part that begins with it
  while ((last + 1) * kEmbedPart < p.rows && p.ids[(last + 1) * kEmbedPart] == id) ++last;
  for (int col = threadIdx.x * pack; col < p.hidden; col += blockDim.x * pack) {
    float sum[pack];
    const float* tail = partial_of(p, kTail, part, col);
#pragma unroll
    for (int c = 0; c < pack; ++c) sum[c] = tail[c];
#pragma unroll 4
    for (int other = part + 1; other <= last; ++other) {
      const float* more = partial_of(p, kLead, other, col);
#pragma unroll
      for (int c = 0; c < pack; ++c) sum[c] += more[c];
    }
    write(p, id, col, sum);
  }
}

__global__ void __launch_bounds__(kThreads) add_rows_kernel(const EmbedBackwardParams<float> p) {
  wait_for_previous();
  let_next_start();
  const int64_t row = blockIdx.x, id = p.ids[row];
  if (!counts(p, id)) return;
  for (int col = threadIdx.x; col < p.hidden; col += blockDim.x) {
    float dy[1] = {p.dy[row * p.hidden + col]};
    drop(p.dropout, row * p.hidden + col, dy);
    atomicAdd(p.dtable + id * p.hidden + col, static_cast<float>(p.scale) * dy[0]);
  }
}

template <int pack, typename T>
void start(Stream& stream, const EmbedBackwardParams<T>& p) {
  const int threads = std::min(kThreads, whole_warps(divide_up(p.hidden, pack)));
  launch(stream, add_part_kernel<pack, T>, embed_parts(p.rows), threads, 0, p);
  launch(stream, join_parts_kernel<pack, T>, embed_parts(p.rows), threads, 0, p);
}

}  // namespace
}  // namespace cuda

template <typename T>
void embed_backward(cuda::Stream& stream, const EmbedBackwardParams<T>& p) {
  if (p.rows == 0 || p.hidden == 0) return;
  if (p.order == nullptr) {
    if constexpr (std::is_same_v<T, float>) {
      const int threads = std::min(cuda::kThreads, cuda::whole_warps(p.hidden));
      return cuda::launch(stream, cuda::add_rows_kernel, p.rows, threads, 0, p);
    }
    CHECK(p.order != nullptr, "without an order dtable must be float32");
  }
  const bool aligned = cuda::aligned16<T>(p.dy, p.hidden) &&
                       cuda::aligned16<T>(p.dtable, p.hidden) &&
                       cuda::aligned16<float>(p.partial, p.hidden);
  aligned ? cuda::start<16 / sizeof(T)>(stream, p) : cuda::start<1>(stream, p);
}

#define INSTANTIATE(T) template void embed_backward(cuda::Stream&, const EmbedBackwardParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
