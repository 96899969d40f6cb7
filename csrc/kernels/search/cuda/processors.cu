// Scores of rows. Threads take what the processors touch down in bitmaps in shared memory, while
// the exponentials of their logits find together; then each writes the scores of its columns once,
// with the edits of those that are marked. So no token is edited twice, and no order shows. What is
// done to a token stands in shared/processors.h.
//
// On sm_90 a cluster of blocks shares a row, each with the columns and the marks of its own. How
// many depends on V alone, and with it the order in which exponentials are added up.
#include <algorithm>
#include <bit>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/search/processors.h"
#include "kernels/search/shared/processors.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kMostBlocks = 8;  // of a row

// Blocks that share a row, and the columns of each, as many as whole words of a bitmap.
struct Shares {
  int blocks, columns;

  Shares(int vocab, const Device& device) {
    const unsigned rounds = (vocab + 8 * kThreads - 1) / (8 * kThreads);
    blocks = device.hopper() ? std::min<int>(kMostBlocks, std::bit_ceil(rounds)) : 1;
    columns = (vocab + 32 * blocks - 1) / (32 * blocks) * 32;
  }
  __host__ __device__ int words() const { return columns / 32; }
};

// The columns of a block.
struct Share {
  int begin, end;
};

__device__ __forceinline__ Share share_of(const Shares& shares, int vocab) {
  const int begin = min(static_cast<int>(blockIdx.x) * shares.columns, vocab);
  return {begin, min(begin + shares.columns, vocab)};
}

// What exponentials add up to, relative to the largest: NaN once there was a NaN or +inf.
struct Exponentials {
  float peak = -INFINITY, sum = 0.0f;

  Exponentials() = default;
  // As shared memory holds it.
  __device__ explicit Exponentials(float2 both) : peak(both.x), sum(both.y) {}
  __device__ float2 both() const { return {peak, sum}; }

  // -inf - -inf would be NaN; with any other base, exp(-inf) is the 0 that it should be.
  __device__ static float base(float peak) { return peak == -INFINITY ? 0.0f : peak; }

  template <int count>
  __device__ void add(const float (&x)[count]) {
    float highest = peak;
#pragma unroll
    for (int i = 0; i < count; ++i) highest = fmaxf(highest, x[i]);
    sum *= __expf(peak - base(highest));
    peak = highest;
#pragma unroll
    for (int i = 0; i < count; ++i) sum += __expf(x[i] - base(peak));
  }

  __device__ Exponentials over_warp() const {
    const float highest = warp_max(peak);
    return Exponentials({highest, warp_sum(sum * __expf(peak - base(highest)))});
  }

  __device__ float log() const { return base(peak) + logf(sum); }
};

// Where the threads of a row find together: those of a warp by shuffles, the warps of a block and
// then the blocks through shared memory. The order of adding is fixed.
struct RowExponentials {
  float2 warps[kWarps], blocks[kMostBlocks];

  // All threads call this; the row's sum is there once its blocks have met.
  __device__ void add(const Exponentials& mine) {
    const Exponentials warp = mine.over_warp();
    const unsigned lane = threadIdx.x % 32;
    if (lane == 0) warps[threadIdx.x / 32] = warp.both();
    __syncthreads();
    if (threadIdx.x >= 32) return;
    const float2 block = Exponentials(warps[lane]).over_warp().both();
    if (gridDim.x == 1) {
      if (lane == 0) blocks[0] = block;
    } else if (lane < gridDim.x) {
      store_to_block(lane, &blocks[blockIdx.x], block);
    }
  }

  __device__ float log_sum_exp() const {
    const unsigned lane = threadIdx.x % 32;
    return (lane < gridDim.x ? Exponentials(blocks[lane]) : Exponentials()).over_warp().log();
  }
};

// The columns of a share that a thread takes, `width` at a time; the first ones stay in registers.
template <typename T, int width>
struct Columns {
  __device__ Columns(const T* of, Share columns) : row(of), share(columns) {
    if (first() < share.end) held = held.load(row + first());
  }

  __device__ int first() const { return share.begin + static_cast<int>(threadIdx.x) * width; }

  // Calls use(column, x) for each; from the share's end on, x is -inf.
  template <typename Use>
  __device__ __forceinline__ void each(Use&& use) const {
    Vector<T, width> packed = held;
#pragma unroll 1
    for (int column = first(); column < share.end;) {
      float x[width];
#pragma unroll
      for (int j = 0; j < width; ++j) x[j] = column + j < share.end ? packed[j] : -INFINITY;
      const int next = column + kThreads * width;
      if (next < share.end) packed = packed.load(row + next);
      use(column, x);
      column = next;
    }
  }

  __device__ Exponentials exponentials() const {
    Exponentials all;
    each([&](int, const float (&x)[width]) { all.add(x); });
    return all;
  }

 private:
  const T* row;
  Share share;
  Vector<T, width> held;
};

// x - shift; NaN everywhere, as Hugging Face has it, where lse is not finite.
__device__ __forceinline__ float shift_of(float lse) { return isfinite(lse) ? lse : NAN; }

// The marks of a share, a bitmap for each reason.
struct Marks {
  uint32_t* words;  // [kMarks, each]
  int each;
  Share share;

  __device__ void operator()(Mark why, int token) const {
    // A source may hold tokens that the decoder has not.
    if (token < share.begin || token >= share.end) return;
    const int at = token - share.begin;
    atomicOr(&words[why * each + at / 32], 1u << at % 32);
  }

  // The marks of a token, a bit for each reason.
  __device__ unsigned of(int token) const {
    const int at = token - share.begin;
    unsigned marks = 0;
#pragma unroll
    for (int why = 0; why < kMarks; ++why) {
      marks |= (words[why * each + at / 32] >> at % 32 & 1u) << why;
    }
    return marks;
  }

  // A bit for each token from `token` on, as far as their word goes, that has any mark.
  __device__ unsigned from(int token) const {
    const int at = token - share.begin;
    unsigned any = 0;
#pragma unroll
    for (int why = 0; why < kMarks; ++why) any |= words[why * each + at / 32];
    return any >> at % 32;
  }
};

// One block's share of row i.
template <typename T, int width>
struct Block {
  const ProcessLogitsParams<T>& p;
  const ProcessedRow& row;
  Marks marks;
  Share share;
  int64_t i;

  __device__ float* scores() const { return p.scores + i * p.score_stride; }
  __device__ const T* logits() const { return p.logits + i * p.stride; }
  __device__ const T* unconditional() const { return p.unconditional + i * p.stride; }

  __device__ void mark() const {
    if (p.stages & kPre) row.mark_pre(threadIdx.x, kThreads, marks);
    if (p.stages & kMid) row.mark_mid(threadIdx.x, kThreads, marks);
  }

  // Takes the row's log-sum-exps down; returns what is subtracted from the logits.
  __device__ float2 shift(float lse, float other) const {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      const float found = isfinite(other) ? lse : NAN;
      p.lse[i] = row.processors().remove_invalid && !isfinite(found) ? 0.0f : found;
      if (row.guided) p.unconditional_lse[i] = other;
    }
    return {p.competing || row.guided ? shift_of(lse) : 0.0f, other};
  }

  // The scores of some columns before any edit, from their logits.
  __device__ __forceinline__ void open(int column, float2 shift, float (&x)[width]) const {
#pragma unroll
    for (int j = 0; j < width; ++j) x[j] -= shift.x;
    if (!row.guided) return;
    const auto other = Vector<T, width>::load(unconditional() + column);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      const float u = other[j] - shift.y;
      x[j] = row.processors().guidance * (x[j] - u) + u;
    }
  }

  // The scores of some columns, which this thread has written.
  __device__ __forceinline__ void edit(int column) const {
    const unsigned columns = (1u << min(width, share.end - column)) - 1;
    const bool all = p.stages & kMid && row.forces();
#pragma unroll 1
    for (unsigned due = (all ? ~0u : marks.from(column)) & columns; due != 0; due &= due - 1) {
      const int token = column + __ffs(due) - 1;
      const unsigned has = marks.of(token);
      float x = scores()[token];
      if (p.stages & kPre) x = row.edit_pre(has, token, x, 0.0f);
      if (p.stages & kMid) x = row.edit_mid(has, token, row.force(token, x));
      scores()[token] = x;
    }
  }

  // Also behind the row's end, as far as its padding goes.
  __device__ __forceinline__ void store(int column, const float (&x)[width]) const {
    Vector<float, width> packed;
#pragma unroll
    for (int j = 0; j < width; ++j) packed.values[j] = x[j];
    packed.store(scores() + column);
  }

  __device__ void renormalize(const Columns<float, width>& columns, float lse) const {
    if (lse == -INFINITY) return;  // nothing is left to choose: the row stays as it is
    columns.each([&](int column, float (&x)[width]) {
#pragma unroll
      for (int j = 0; j < width; ++j) x[j] -= shift_of(lse);
      store(column, x);
    });
  }
};

// Between these two the blocks of a row need not stay together; behind the second, what they have
// exchanged and, within a block, taken down is there.
__device__ __forceinline__ void arrive_at_row() {
  if (gridDim.x > 1) arrive_at_cluster();
}
__device__ __forceinline__ void wait_for_row() {
  if (gridDim.x > 1) wait_for_cluster();
  __syncthreads();
}

template <typename T, int width>
__global__ void __launch_bounds__(kThreads)
    process_logits_kernel(const __grid_constant__ ProcessLogitsParams<T> p, const Shares shares) {
  extern __shared__ uint32_t bitmaps[];  // [kMarks, words of a share]
  __shared__ SentenceConfig config;
  __shared__ ProcessedRow row;
  __shared__ RowExponentials sums[3];  // of the logits, of the unconditional ones, of the scores
  const int each = shares.words(), i = blockIdx.y;
  for (int word = threadIdx.x; word < kMarks * each; word += kThreads) bitmaps[word] = 0;
  if (gridDim.x > 1) sync_cluster();  // nobody may write to a block that has not begun
  wait_for_previous();
  let_next_start();
  // Everything that can be asked for at once is.
  const Share share = share_of(shares, p.vocab);
  const Block<T, width> block = {p, row, {bitmaps, each, share}, share, i};
  const int active_count = p.state->active_count;
  const bool opens = p.stages & kPre;
  const Columns<T, width> logits(block.logits(), share);
  if (i >= active_count * p.beams) return;
  constexpr int words = sizeof(SentenceConfig) / sizeof(uint32_t);
  static_assert(words <= kThreads);
  const SentenceConfig* asked = p.config.sentences + p.active[i / p.beams].id;
  if (threadIdx.x < words) {
    reinterpret_cast<uint32_t*>(&config)[threadIdx.x] =
        reinterpret_cast<const uint32_t*>(asked)[threadIdx.x];
  }
  __syncthreads();
  const bool guided = opens && p.unconditional != nullptr && config.processors.guidance != 1.0f;
  if (threadIdx.x == 0) row = processed_row(p, config, i);
  if (opens) sums[0].add(logits.exponentials());
  if (guided) sums[1].add(Columns<T, width>(block.unconditional(), share).exponentials());
  arrive_at_row();
  __syncthreads();
  block.mark();
  wait_for_row();
  if (opens) {
    const float other = guided ? sums[1].log_sum_exp() : 0.0f;
    const float2 shift = block.shift(sums[0].log_sum_exp(), other);
    logits.each([&](int column, float (&x)[width]) {
      block.open(column, shift, x);
      block.store(column, x);
      block.edit(column);
    });
  } else if (p.stages & kMid) {
    for (int column = logits.first(); column < share.end; column += kThreads * width) {
      block.edit(column);
    }
  }
  if (!(p.stages & kPost && config.renormalize)) return;
  const Columns<float, width> scores(block.scores(), share);  // each thread's own
  sums[2].add(scores.exponentials());
  arrive_at_row();
  wait_for_row();
  block.renormalize(scores, sums[2].log_sum_exp());
}

template <typename T, int width>
void process_rows(Stream& stream, const ProcessLogitsParams<T>& p) {
  const Shares shares(p.vocab, stream.device());
  const size_t bytes = sizeof(uint32_t) * kMarks * shares.words();
  launch_clusters(stream, process_logits_kernel<T, width>, dim3(shares.blocks),
                  dim3(shares.blocks, p.sentences * p.beams), kThreads, bytes, p, shares);
}

}  // namespace
}  // namespace cuda

template <typename T>
void process_logits(cuda::Stream& stream, const ProcessLogitsParams<T>& p) {
  if (p.sentences == 0) return;
  const bool aligned = cuda::aligned16<T>(p.logits, p.stride) &&
                       cuda::aligned16<T>(p.unconditional, p.stride) &&
                       cuda::aligned16<float>(p.scores, p.score_stride);
  aligned ? cuda::process_rows<T, 16 / sizeof(T)>(stream, p) : cuda::process_rows<T, 1>(stream, p);
}

#define INSTANTIATE(T) template void process_logits(cuda::Stream&, const ProcessLogitsParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
