// A row of float32 scores that one block works on: all of it, or, once few tokens are left, a list
// of those in shared memory; and the end of the shortest best-first prefix that weighs as much as
// wanted, for any order and any weights.
//
// Weights are whole numbers, so that they add up to the same in any order, and in double precision
// without rounding.
#pragma once

#include <cfloat>

#include "kernels/search/cuda/prefix.cuh"

namespace decoding::cuda::selection {

constexpr int kListed = 2048;  // tokens that a list, or a queue, holds
constexpr Key kFirstKey = ~Key{0};

struct Scores {
  float* row;  // [V]
  int vocab;
  Key* list;   // [kListed], of what is left; 0 where a token was taken out
  int listed;  // -1: there is no list yet
  float peak;  // of what is left

  // Calls use(score, id) for every finite score.
  template <typename Use>
  __device__ __forceinline__ void each(Use&& use) const {
    if (listed >= 0) {
#pragma unroll 1
      for (int i = threadIdx.x; i < listed; i += kThreads) {
        if (list[i] != 0) use(value_of(list[i]), id_of(list[i]));
      }
      return;
    }
    constexpr int kBatch = 8;
#pragma unroll 1
    for (int base = threadIdx.x; base < vocab; base += kBatch * kThreads) {
      float batch[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int id = base + j * kThreads;
        batch[j] = id < vocab ? row[id] : -INFINITY;
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (fabsf(batch[j]) <= FLT_MAX) use(batch[j], base + j * kThreads);
      }
    }
  }
};

__device__ __forceinline__ float find_peak(const Scores& scores) {
  uint32_t highest = order_of(-INFINITY);
  scores.each([&](float score, int) { highest = max(highest, order_of(score)); });
  return value_at(block_max(highest));
}

// By score.
struct ByScore {
  float top;
  __device__ float operator()(float score) const { return score; }
};

// By closeness to the mean.
struct ByTypicality {
  float mean;
  static constexpr float top = 0.0f;
  __device__ float operator()(float score) const { return -fabsf(score - mean); }
};

// The `count` first.
struct Count {
  int count;
  __device__ unsigned long long part(float) const { return 1; }
  __device__ double wanted(double) const { return count; }
};

// The first that hold a share of the probability. The parts of 2^18 tokens add up to 2^52 at most.
struct Share {
  float share, peak;
  static constexpr float kUnits = 0x1p34f;  // that the best token weighs
  __device__ unsigned long long part(float score) const {
    return __float2ull_rn(expf(score - peak) * kUnits);
  }
  __device__ double wanted(double total) const { return share * total; }
};

// Sums of parts, in the memory of a queue.
class Sums {
 public:
  __device__ explicit Sums(Queue queue)
      : low_(reinterpret_cast<uint32_t*>(queue.keys)), high_(low_ + kBins) {
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * kBins; i += kThreads) low_[i] = 0;
    __syncthreads();
  }
  __device__ void add(int bin, unsigned long long part) {
    const auto low = static_cast<uint32_t>(part);
    const uint32_t old = atomicAdd(&low_[bin], low);
    const uint32_t high = static_cast<uint32_t>(part >> 32) + (old + low < old);
    if (high != 0) atomicAdd(&high_[bin], high);
  }
  __device__ double operator[](int bin) const { return high_[bin] * 0x1p32 + low_[bin]; }

 private:
  uint32_t *low_, *high_;
};

// Queues the keys for which wanted(key, order) holds; returns how many there are, which may be more
// than the queue holds.
template <typename Order, typename Wanted>
__device__ __forceinline__ int queue_keys(const Scores& scores, Order order, Queue queue,
                                          Wanted&& wanted) {
  __shared__ int count;
  __syncthreads();
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  scores.each([&](float score, int id) {
    const Key key = key_of(order(score), id);
    if (!wanted(key)) return;
    const int at = atomicAdd(&count, 1);
    if (at < queue.capacity) queue.keys[at] = key;
  });
  __syncthreads();
  return count;
}

// The bins of a prefix's first look: of equal width below the top; the last takes all beyond.
template <typename Order>
__device__ __forceinline__ int bin_of(Key key, Order order) {
  const float distance = (order.top - value_of(key)) * (kBins / kReach);
  return distance < kBins - 1 ? static_cast<int>(distance) : kBins - 1;
}

// The key of the prefix's last token; first_key(-FLT_MAX) where there is none.
//
// Bins of keys tell in which of them the prefix ends; that one is binned again, by the keys
// themselves, so that even equals come apart, until the queue holds it and is sorted.
template <typename Order, typename Weight>
__device__ __noinline__ Key end_of_prefix(const Scores& scores, Order order, Weight weight,
                                          Queue queue) {
  double before = 0.0, wanted;
  int first_bin;
  {
    Sums sums(queue);
    scores.each([&](float score, int id) {
      sums.add(bin_of(key_of(order(score), id), order), weight.part(score));
    });
    __syncthreads();
    first_bin = crossing(
        kBins / kThreads, [&](int i) { return sums[i]; },
        [&](double total) { return wanted = weight.wanted(total); }, before);
  }
  Key from = 0, to = kFirstKey;
  const auto inside = [&](Key key) {
    return from <= key && key <= to && bin_of(key, order) == first_bin;
  };
  for (;;) {
    const int count = queue_keys(scores, order, queue, inside);
    if (count == 0) return first_key(-FLT_MAX);
    if (count <= queue.capacity) {
      sort(queue, count);
      const auto part = [&](int i) -> double {
        return i < count ? weight.part(scores.row[id_of(queue.keys[i])]) : 0;
      };
      const int each = (count + kThreads - 1) / kThreads;
      return queue.keys[crossing(each, part, [=](double) { return wanted; }, before)];
    }
    if (to == kFirstKey) {  // the first look was by distance: which keys are these?
      uint32_t highest = 0, lowest = ~0u;
      scores.each([&](float score, int id) {
        const Key key = key_of(order(score), id);
        if (!inside(key)) return;
        highest = max(highest, static_cast<uint32_t>(key >> 32));
        lowest = min(lowest, static_cast<uint32_t>(key >> 32));
      });
      to = last_key(block_max(highest));
      from = Key{~block_max(~lowest)} << 32;
    }
    const int shift = 64 - __clzll(to - from) - (31 - __clz(kBins));
    Sums sums(queue);
    scores.each([&](float score, int id) {
      const Key key = key_of(order(score), id);
      if (inside(key)) sums.add(static_cast<int>((to - key) >> shift), weight.part(score));
    });
    __syncthreads();
    const int bin = crossing(
        kBins / kThreads, [&](int i) { return sums[i]; }, [=](double) { return wanted; }, before);
    to -= static_cast<Key>(bin) << shift;
    from = max(from, to - ((Key{1} << shift) - 1));
  }
}

}  // namespace decoding::cuda::selection
