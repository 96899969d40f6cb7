// Scores of rows. Threads read the logits once for the log-sum-exp; mark what the processors touch,
// in bitmaps in shared memory; read the logits again, now from the L2 cache, to write the scores;
// then edit those that are marked. So no token is edited twice, and no order shows. What is done to
// a token stands in processors.h.
//
// On sm_90 a cluster of blocks shares a row, each with the columns and the marks of its own. How
// many depends on V alone, and with it the order in which exponentials are added up.
#include <algorithm>
#include <bit>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/process.h"
#include "kernels/processors.h"

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

  __device__ Share(const Shares& shares, int vocab)
      : begin(min(static_cast<int>(blockIdx.x) * shares.columns, vocab)),
        end(min(begin + shares.columns, vocab)) {}
};

// What exponentials add up to, relative to the largest: NaN once there was a NaN or +inf.
struct Exponentials {
  float peak = -INFINITY, sum = 0.0f;

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

  __device__ Exponentials merged(float other_peak, float other_sum) const {
    const float highest = fmaxf(peak, other_peak);
    return {highest,
            sum * __expf(peak - base(highest)) + other_sum * __expf(other_peak - base(highest))};
  }

  __device__ Exponentials over_warp() const {
    Exponentials all = *this;
#pragma unroll
    for (int other = 16; other > 0; other /= 2) {
      all = all.merged(__shfl_xor_sync(kAllLanes, all.peak, other),
                       __shfl_xor_sync(kAllLanes, all.sum, other));
    }
    return all;
  }

  // The log-sum-exp of what all threads of the row's blocks have; the order of adding is fixed.
  __device__ float log_over_row() const {
    __shared__ float peaks[kWarps], sums[kWarps], peak_of_block, sum_of_block;
    const Exponentials mine = over_warp();
    __syncthreads();  // what the last call left has been read
    if (threadIdx.x % 32 == 0) {
      peaks[threadIdx.x / 32] = mine.peak;
      sums[threadIdx.x / 32] = mine.sum;
    }
    __syncthreads();
    const int warp = threadIdx.x % 32;
    Exponentials all;
    if (warp < kWarps) all = {peaks[warp], sums[warp]};
    all = all.over_warp();
    if (gridDim.x > 1) {
      if (threadIdx.x == 0) {
        peak_of_block = all.peak;
        sum_of_block = all.sum;
      }
      meet_cluster();
      all = {};
      for (unsigned block = 0; block < gridDim.x; ++block) {
        all = all.merged(load_from_block(block, &peak_of_block),
                         load_from_block(block, &sum_of_block));
      }
      meet_cluster();  // nobody may leave, or write again, before all have read
    }
    return base(all.peak) + logf(all.sum);
  }
};

// The columns of a share that a thread takes, `width` at a time; `kAhead` loads are under way.
constexpr int kAhead = 4;

// Calls use(column, packed) for each.
template <int width, typename T, typename Use>
__device__ __forceinline__ void for_columns(const T* row, Share share, Use&& use) {
  constexpr int step = kThreads * width;
#pragma unroll 1
  for (int base = share.begin + threadIdx.x * width; base < share.end; base += kAhead * step) {
    Vector<T, width> packed[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (base + a * step < share.end) packed[a] = packed[a].load(row + base + a * step);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (base + a * step < share.end) use(base + a * step, packed[a]);
    }
  }
}

// -inf from `end` on.
template <typename T, int width>
__device__ __forceinline__ void unpack(const Vector<T, width>& packed, int column, int end,
                                       float (&x)[width]) {
#pragma unroll
  for (int i = 0; i < width; ++i) x[i] = column + i < end ? packed[i] : -INFINITY;
}

// Of the whole row.
template <int width, typename T>
__device__ __forceinline__ float log_sum_exp(const T* row, Share share) {
  Exponentials all;
  for_columns<width>(row, share, [&](int column, const Vector<T, width>& packed) {
    float x[width];
    unpack(packed, column, share.end, x);
    all.add(x);
  });
  return all.log_over_row();
}

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

  // Calls use(token) for those that have marks.
  template <typename Use>
  __device__ void for_marked(Use&& use) const {
    for (int word = threadIdx.x; word < each; word += kThreads) {
      unsigned any = 0;
#pragma unroll
      for (int why = 0; why < kMarks; ++why) any |= words[why * each + word];
#pragma unroll 1
      for (; any != 0; any &= any - 1) use(share.begin + word * 32 + __ffs(any) - 1);
    }
  }
};

// One block's share of row i.
template <typename T, int width>
struct Block {
  const ProcessParams<T>& p;
  const ProcessedRow& row;
  Marks marks;
  Share share;
  int64_t i;

  __device__ float* scores() const { return p.scores + i * p.score_stride; }
  __device__ const T* logits() const { return p.logits + i * p.stride; }
  __device__ const T* unconditional() const { return p.unconditional + i * p.stride; }

  __device__ void mark() const {
    if (p.stages & kBefore) row.mark_before(threadIdx.x, kThreads, marks);
    if (p.stages & kMiddle) row.mark_middle(threadIdx.x, kThreads, marks);
  }

  // The log-sum-exps of both passes; returns what is subtracted from each.
  __device__ float2 scan() const {
    const bool guided = p.unconditional != nullptr;
    const float lse = log_sum_exp<width>(logits(), share);
    const float other = guided ? log_sum_exp<width>(unconditional(), share) : 0.0f;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      const float found = isfinite(other) ? lse : NAN;
      p.lse[i] = row.rules->remove_invalid && !isfinite(found) ? 0.0f : found;
      if (guided) p.unconditional_lse[i] = other;
    }
    return {p.competing || guided ? shift_of(lse) : 0.0f, other};
  }

  // The scores of some columns before any edit, from their logits.
  __device__ __forceinline__ void open(int column, float2 shift, float (&x)[width]) const {
#pragma unroll
    for (int j = 0; j < width; ++j) x[j] -= shift.x;
    if (p.unconditional == nullptr) return;
    float u[width];
    unpack(Vector<T, width>::load(unconditional() + column), column, share.end, u);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      u[j] -= shift.y;
      x[j] = row.rules->guidance * (x[j] - u[j]) + u[j];
    }
  }

  __device__ __forceinline__ void store(int column, const float (&x)[width]) const {
    Vector<float, width> packed;
#pragma unroll
    for (int j = 0; j < width; ++j) packed.values[j] = x[j];
    if (column + width <= share.end) return packed.store(scores() + column);
#pragma unroll
    for (int j = 0; j < width; ++j) {
      if (column + j < share.end) scores()[column + j] = x[j];
    }
  }

  // Writes the scores before any edit.
  __device__ void open_row(float2 shift) const {
    for_columns<width>(logits(), share, [&](int column, const Vector<T, width>& packed) {
      float x[width];
      unpack(packed, column, share.end, x);
      open(column, shift, x);
      store(column, x);
    });
  }

  __device__ void edit() const {
    const auto edit = [&](int token) {
      const unsigned has = marks.of(token);
      float x = scores()[token];
      if (p.stages & kBefore) x = row.edit_before(has, token, x, 0.0f);
      if (p.stages & kMiddle) x = row.edit_middle(has, token, row.force(token, x));
      scores()[token] = x;
    };
    if (p.stages & kMiddle && row.forces()) {
#pragma unroll 1
      for (int token = share.begin + threadIdx.x; token < share.end; token += kThreads) edit(token);
    } else {
      marks.for_marked(edit);
    }
  }

  __device__ void renormalize() const {
    const float lse = log_sum_exp<width>(scores(), share);
    if (lse == -INFINITY) return;  // nothing is left to choose: the row stays as it is
    for_columns<width>(scores(), share, [&](int column, const Vector<float, width>& packed) {
      float x[width];
      unpack(packed, column, share.end, x);
#pragma unroll
      for (int j = 0; j < width; ++j) x[j] -= shift_of(lse);
      store(column, x);
    });
  }
};

template <typename T, int width>
__global__ void __launch_bounds__(kThreads)
    process_kernel(const __grid_constant__ ProcessParams<T> p, const Shares shares) {
  extern __shared__ uint32_t bitmaps[];  // [kMarks, words of a share]
  __shared__ ProcessRules rules;
  __shared__ ProcessedRow row;
  const int each = shares.words();
  for (int word = threadIdx.x; word < kMarks * each; word += kThreads) bitmaps[word] = 0;
  wait_for_previous();
  let_next_start();
  const int i = blockIdx.y;
  if (i >= p.now->live_count * p.beams) return;
  if (threadIdx.x == 0) {
    rules = *p.rules;
    row = processed_row(p, rules, i);  // the others read logits meanwhile
  }
  const Share share(shares, p.vocab);
  const Block<T, width> block = {p, row, {bitmaps, each, share}, share, i};
  float2 shift = {};
  if (p.stages & kBefore) shift = block.scan();
  __syncthreads();
  block.mark();
  if (p.stages & kBefore) block.open_row(shift);
  __syncthreads();
  block.edit();
  if (!(p.stages & kLast && rules.renormalize)) return;
  __syncthreads();
  block.renormalize();
}

template <typename T, int width>
void process_rows(Stream& stream, const ProcessParams<T>& p) {
  const Shares shares(p.vocab, stream.device());
  const size_t bytes = sizeof(uint32_t) * kMarks * shares.words();
  launch_clusters(stream, process_kernel<T, width>, dim3(shares.blocks),
                  dim3(shares.blocks, p.sentences * p.beams), kThreads, bytes, p, shares);
}

}  // namespace
}  // namespace cuda

template <typename T>
void process(cuda::Stream& stream, const ProcessParams<T>& p) {
  if (p.sentences == 0) return;
  const bool aligned = cuda::aligned16<T>(p.logits, p.stride) &&
                       cuda::aligned16<T>(p.unconditional, p.stride) &&
                       cuda::aligned16<float>(p.scores, p.score_stride);
  aligned ? cuda::process_rows<T, 16 / sizeof(T)>(stream, p) : cuda::process_rows<T, 1>(stream, p);
}

#define INSTANTIATE(T) template void process(cuda::Stream&, const ProcessParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
