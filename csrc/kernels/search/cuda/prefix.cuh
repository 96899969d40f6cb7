// The end of the shortest best-first prefix of a row that weighs as much as wanted, where each
// token weighs 1 (the k-th best, exactly) or its probability (the end of top-p's nucleus).
//
// A descent by histograms: tokens are counted in bins that fall in value, the bin in which the
// prefix ends is binned again, until the queue holds what is left and is sorted. The first bins
// are of equal width below the row's peak; later ones cut the keys themselves (order.cuh), so that
// even equal values come apart, by their ids. Weights are added up as integers: in any order, with
// the same result.
#pragma once

#include <cfloat>
#include <climits>

#include "kernels/search/cuda/order.cuh"
#include "kernels/search/cuda/visit.cuh"

namespace decoding::cuda::selection {

constexpr int kBins = 1024;
constexpr float kReach = 32.0f;  // of the first bins, in temperatures; the last takes all below
static_assert(kBins == 1 << 10);

// The k best.
struct Counted {
  int k;
  float peak;
  static constexpr float temperature = 1.0f;

  __device__ double wanted(double) const { return k; }
  __device__ uint32_t part(float, float) const { return 1; }
  __device__ double unit(float) const { return 1.0; }
  __device__ double of(float) const { return 1.0; }
};

// The best that hold a share p of the probability.
struct Mass {
  float p;
  float peak, temperature;
  float scale;  // 1 / temperature

  __device__ double wanted(double total) const { return p * total; }
  // Of a value, in units of 2^-24 of what `top`, just above it, weighs.
  __device__ uint32_t part(float value, float top) const {
    return __float2uint_rn(__expf((value - top) * scale) * 0x1p24f);
  }
  __device__ double unit(float top) const { return of(top) * 0x1p-24; }
  __device__ double of(float value) const { return expf((value - peak) * scale); }
};

// The first of kThreads * each indices at which the sum of weight(index) reaches goal(total of
// all); where rounding lets none reach it, the last that weighs anything. `before`, the sum so far,
// grows by what precedes that index.
template <typename WeightOf, typename Goal>
__device__ __forceinline__ int crossing(int each, WeightOf&& weight, Goal&& goal, double& before) {
  __shared__ int reached, last;
  __shared__ double preceding;
  if (threadIdx.x == 0) {
    reached = INT_MAX;
    last = 0;
  }
  const int begin = threadIdx.x * each, end = begin + each;
  double mine = 0.0, total;
#pragma unroll 1
  for (int i = begin; i < end; ++i) mine += weight(i);
  double sum = before + block_prefix(mine, total);
  const double wanted = goal(total), start = sum;
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    const double more = weight(i);
    sum += more;
    if (more > 0.0) atomicMax(&last, i);
    if (more > 0.0 && sum >= wanted) {
      atomicMin(&reached, i);
      break;
    }
  }
  __syncthreads();
  const int at = reached < INT_MAX ? reached : last;
  if (begin <= at && at < end) {
    sum = start;
#pragma unroll 1
    for (int i = begin; i < at; ++i) sum += weight(i);
    preceding = sum;
  }
  __syncthreads();
  before = preceding;
  return at;
}

// Sums of 32-bit parts, in the memory of a queue of kBins keys at least.
class Bins {
 public:
  __device__ explicit Bins(Queue queue)
      : low_(reinterpret_cast<uint32_t*>(queue.keys)), high_(low_ + kBins) {
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * kBins; i += kThreads) low_[i] = 0;
    __syncthreads();
  }
  __device__ void add(int bin, uint32_t part) {
    const uint32_t old = atomicAdd(&low_[bin], part);
    if (old + part < old) atomicAdd(&high_[bin], 1u);
  }
  __device__ double operator[](int bin) const { return high_[bin] * 0x1p32 + low_[bin]; }

 private:
  uint32_t *low_, *high_;
};

// The first bins, of equal width.
struct Ruler {
  float peak, width, per_unit;  // 1 / width

  __device__ int bin(float value) const {
    const float distance = (peak - value) * per_unit;
    return distance < kBins - 1 ? static_cast<int>(distance) : kBins - 1;
  }
  __device__ float top(int bin) const { return peak - bin * width; }

  // The lowest and the highest key of a bin. Bins fall as values rise, however they were rounded.
  __device__ void bounds(int wanted, Key& from, Key& to) const {
    const uint32_t worst = order_of(-FLT_MAX), best = order_of(peak);
    uint32_t low = worst, low_end = best;    // the lowest order whose bin is `wanted` or before
    uint32_t high = worst, high_end = best;  // the highest whose bin is `wanted` or behind
    while (low < low_end || high < high_end) {
      const uint32_t left = low + (low_end - low) / 2;
      if (bin(value_at(left)) <= wanted)
        low_end = left;
      else
        low = left + 1;
      const uint32_t right = high + (high_end - high + 1) / 2;
      if (bin(value_at(right)) >= wanted)
        high = right;
      else
        high_end = right - 1;
    }
    from = Key{low} << 32;
    to = last_key(high);
  }
};

// Queues what lies between two keys, both included; returns how much that is, which may be more
// than the queue holds.
template <typename T>
__device__ __noinline__ int collect(Row<T> row, Key from, Key to, Queue queue) {
  visit_few(row, value_of(from), [&](float value, int id) {
    const Key key = key_of(value, id);
    if (key < from || key > to) return;
    const int at = atomicAdd(queue.count, 1);
    if (at < queue.capacity) queue.keys[at] = key;
  });
  __syncthreads();
  const int count = *queue.count;
  __syncthreads();
  if (threadIdx.x == 0) *queue.count = 0;  // for the next time; the block meets before that
  return count;
}

// In a sorted queue: the index at which the prefix ends, where `before` precedes it.
template <typename Weight>
__device__ __forceinline__ int end_of_queue(const Weight& weight, Queue queue, int count,
                                            double before, double wanted) {
  const auto of = [&](int i) { return i < count ? weight.of(value_of(queue.keys[i])) : 0.0; };
  return crossing((count + kThreads - 1) / kThreads, of, [=](double) { return wanted; }, before);
}

// The last key of the prefix, among the values that reach `floor`.
template <typename T, typename Weight>
__device__ __noinline__ Key end_of_prefix(Row<T> row, Weight weight, float floor, Queue queue) {
  double before = 0.0, wanted;
  Key from, to;
  {
    const float width = kReach / kBins * weight.temperature;
    const Ruler ruler = {weight.peak, width, 1.0f / width};
    Bins bins(queue);
    visit<4>(row, floor, [&](float value, int) {
      const int bin = ruler.bin(value);
      bins.add(bin, weight.part(value, ruler.top(bin)));
    });
    __syncthreads();
    const int bin = crossing(
        kBins / kThreads, [&](int i) { return bins[i] * weight.unit(ruler.top(i)); },
        [&](double total) { return wanted = weight.wanted(total); }, before);
    ruler.bounds(bin, from, to);
    from = max(from, first_key(floor));
  }
  for (;;) {
    const int count = collect(row, from, to, queue);
    if (count <= queue.capacity) {
      if (count == 0) return from;  // a broken row
      sort(queue, count);
      const Key last = queue.keys[end_of_queue(weight, queue, count, before, wanted)];
      __syncthreads();  // all have read it before the caller fills the queue again
      return last;
    }
    const float top = value_of(to);
    const int shift = 64 - __clzll(to - from) - 10;
    Bins bins(queue);
    visit<4>(row, value_of(from), [&](float value, int id) {
      const Key key = key_of(value, id);
      if (from <= key && key <= to) bins.add((to - key) >> shift, weight.part(value, top));
    });
    __syncthreads();
    const int bin = crossing(
        kBins / kThreads, [&](int i) { return bins[i] * weight.unit(top); },
        [=](double) { return wanted; }, before);
    to -= static_cast<Key>(bin) << shift;
    from = max(from, to - ((Key{1} << shift) - 1));
  }
}

}  // namespace decoding::cuda::selection
