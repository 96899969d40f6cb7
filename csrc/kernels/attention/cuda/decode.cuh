// y = softmax(q k^T) v for one query, by an online softmax: the rows of keys and values are divided
// over the lanes of a warp and the warps of a block, whose partial results are then merged.
#pragma once

#include <cstdint>

#include "kernels/attention/cuda/attention.cuh"
#include "kernels/attention/decode.h"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/cuda/vector.cuh"

namespace decoding::cuda {

constexpr int kTileRows = 4;  // rows of keys, and of values, that a lane asks for at once
constexpr int kMaxWarps = 8;  // of a block

// A row is held by `lanes` neighbouring lanes: `vectors` vectors of `width` elements each.
template <int width_, int lanes_, int vectors_>
struct DecodeConfig {
  static constexpr int width = width_, lanes = lanes_, vectors = vectors_;
  static constexpr int elements = width * vectors;

  // The first element of a lane's v-th vector.
  __device__ static int at(int v) { return (v * lanes + threadIdx.x % lanes) * width; }
};

// 16 bytes, zeros where not `valid`. In assembly, since the compiler makes branches of such loads,
// and then each waits for the one before.
__device__ __forceinline__ void load16(uint32_t* to, const void* from, bool valid) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
      " mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
      " @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
      : "l"(from), "r"(static_cast<int>(valid))
      : "memory");
}

// One number, likewise.
__device__ __forceinline__ int32_t load_number(const int32_t* from, bool valid) {
  int32_t number;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n mov.b32 %0, 0;\n @p ld.global.b32 %0, [%1];\n}"
      : "=r"(number)
      : "l"(from), "r"(static_cast<int>(valid))
      : "memory");
  return number;
}

// 16 bytes to shared memory. They go through L1, where beams find what they have in common.
__device__ __forceinline__ void copy16(uint4* to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}

// A lane's part of a row, as it lies in memory.
template <typename T, typename S>
struct RowFragment {
  static constexpr int per_word = 4 / sizeof(T), count = S::elements / per_word;
  uint32_t words[count];

  __device__ __forceinline__ float operator[](int e) const {
    if constexpr (per_word == 1) {
      return __uint_as_float(words[e]);
    } else {
      const float2 pair = unpack<T>(words[e / 2]);
      return e % 2 == 0 ? pair.x : pair.y;
    }
  }

  // Zeros where not `valid`, and from element `dim` on.
  __device__ __forceinline__ void load(const T* from, int dim, bool valid) {
#pragma unroll
    for (int v = 0; v < S::vectors; ++v) {
      const bool inside = valid && S::at(v) < dim;
      if constexpr (S::width * sizeof(T) == 16) {
        load16(words + 4 * v, from + S::at(v), inside);
      } else {
        const T value = inside ? from[S::at(v)] : from_float<T>(0);
        memcpy(reinterpret_cast<T*>(words) + v, &value, sizeof(T));
      }
    }
  }
  // The same from shared memory.
  __device__ __forceinline__ void load_shared(const T* from, int dim, bool valid) {
#pragma unroll
    for (int v = 0; v < S::vectors; ++v) {
      Vector<T, S::width> vector{};
      if (valid && S::at(v) < dim) vector = Vector<T, S::width>::load(from + S::at(v));
      memcpy(reinterpret_cast<char*>(words) + v * sizeof(vector), &vector, sizeof(vector));
    }
  }
  __device__ __forceinline__ void store(T* to, int dim) const {
#pragma unroll
    for (int v = 0; v < S::vectors; ++v) {
      Vector<T, S::width> vector;
      memcpy(&vector, reinterpret_cast<const char*>(words) + v * sizeof(vector), sizeof(vector));
      if (S::at(v) < dim) vector.store(to + S::at(v));
    }
  }
};

// The tiles that a warp has requested, oldest first, in shared memory that no other warp touches.
// There they arrive without the lanes' help, and take none of their registers.
//
// Each lane reads what it has requested itself. With `matrix`, where 8 lanes hold a row, or 16, a
// tile's keys (or values) are also a matrix of 16 rows, or 8: pieces change places within a row so
// that those below each other lie in different banks.
template <typename T, typename S, bool matrix = S::lanes == 8>
class Ring {
 public:
  static constexpr int kTiles = 2;
  static constexpr int kPieces = sizeof(RowFragment<T, S>) / 16;        // that a lane has of a row
  static constexpr int kBytes = kTiles * 2 * kTileRows * kPieces * 16;  // for a lane

  __device__ explicit Ring(uint4* memory)
      : memory_(memory + threadIdx.x / kWarp * (kBytes * kWarp / 16)) {}

  // Starts to copy row r of tile i; `offset`: of the row in k and in v, in units of width elements.
  __device__ __forceinline__ void request(int i, int r, const T* k, const T* v, uint32_t offset,
                                          int dim, bool valid) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const T* from = (which == 0 ? k : v) + static_cast<size_t>(offset) * S::width;
      if constexpr (S::width * sizeof(T) == 16) {
#pragma unroll
        for (int v = 0; v < S::vectors; ++v) {
          copy16(own(i, which, r, v), from + S::at(v), valid && S::at(v) < dim);
        }
      } else {  // too small pieces for asynchronous copies
        RowFragment<T, S> row;
        row.load(from, dim, valid);
#pragma unroll
        for (int v = 0; v < kPieces; ++v) memcpy(own(i, which, r, v), row.words + 4 * v, 16);
      }
    }
  }
  // Ends a tile; `valid` has a bit for each of its rows.
  __device__ __forceinline__ void close(uint32_t valid) {
    close_copies();
    valid_ = valid_ >> kTileRows | valid << (kTiles - 1) * kTileRows;
  }

  // The oldest tile, until it is closed again.
  __device__ __forceinline__ void wait() const { wait_for_copies<kTiles - 1>(); }
  __device__ __forceinline__ RowFragment<T, S> read(int i, int which, int r) const {
    RowFragment<T, S> row;
#pragma unroll
    for (int v = 0; v < kPieces; ++v) memcpy(row.words + 4 * v, own(i, which, r, v), 16);
    return row;
  }
  __device__ __forceinline__ bool valid(int r) const { return (valid_ >> r & 1) != 0; }

  // The place of a piece of the matrix. Its row r * groups + g is row r of the warp's group g.
  __device__ __forceinline__ uint4* piece(int i, int which, int row, int column) const {
    return tile(i, which) + row * (S::lanes * kPieces) + (column ^ row % 8);
  }

 private:
  __device__ __forceinline__ uint4* tile(int i, int which) const {
    return memory_ + (i % kTiles * 2 + which) * (kTileRows * kPieces * kWarp);
  }
  __device__ __forceinline__ uint4* own(int i, int which, int r, int v) const {
    const int lane = threadIdx.x % kWarp;
    if constexpr (matrix) {
      return piece(i, which, r * (kWarp / S::lanes) + lane / S::lanes,
                   v * S::lanes + lane % S::lanes);
    }
    return tile(i, which) + (r * kPieces + v) * kWarp + lane;
  }

  uint4* memory_;  // [kTiles, 2, kTileRows, kPieces, lanes], the warp's
  uint32_t valid_ = 0;
};

// The softmax of one beam's query in one group of lanes.
template <typename T, typename S>
struct QuerySoftmax {
  float q[S::elements];         // scaled
  float sum[S::elements] = {};  // of the weighted values
  float maximum = kNoScore, total = 0;

  __device__ __forceinline__ float score(const RowFragment<T, S>& k) const {
    float dot = 0;
#pragma unroll
    for (int e = 0; e < S::elements; ++e) dot = fmaf(q[e], k[e], dot);
    return warp_sum<S::lanes>(dot);
  }

  // Turns the scores of a tile into weights; rows first, first + step, ... of it are the beam's.
  __device__ __forceinline__ void weigh(float (&scores)[kTileRows], int first, int step) {
    float top = maximum;
#pragma unroll
    for (int r = first; r < kTileRows; r += step) top = fmaxf(top, scores[r]);
    rescale(top);
#pragma unroll
    for (int r = first; r < kTileRows; r += step) {
      scores[r] = exponential<T>(scores[r] - reference(top));
      total += scores[r];
    }
  }

  __device__ __forceinline__ void add(float weight, const RowFragment<T, S>& v) {
#pragma unroll
    for (int e = 0; e < S::elements; ++e) sum[e] = fmaf(weight, v[e], sum[e]);
  }

  __device__ __forceinline__ void rescale(float top) {
    const float factor = exponential<T>(maximum - reference(top));
    maximum = top;
    total *= factor;
#pragma unroll
    for (int e = 0; e < S::elements; ++e) sum[e] *= factor;
  }

  // A part: sum [dim], maximum, total.
  __device__ __forceinline__ void store(float* part, int dim) const {
#pragma unroll
    for (int e = 0; e < S::elements; e += kTwo) {
      if (element(e) >= dim) continue;
      if constexpr (kTwo == 2) {
        *reinterpret_cast<float2*>(part + element(e)) = {sum[e], sum[e + 1]};
      } else {
        part[element(e)] = sum[e];
      }
    }
    if (element(0) > 0) return;
    part[dim] = maximum;
    part[dim + 1] = total;
  }

  __device__ __forceinline__ void absorb(const float* part, int dim) {
    absorb_some<1>(part, 1, 0, dim);
  }
  // `count` parts, `stride` floats apart.
  __device__ __forceinline__ void absorb(const float* parts, int count, int stride, int dim) {
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (int i = 0; i < count; i += kAtOnce) {
      absorb_some<kAtOnce>(parts + i * stride, count - i, stride, dim);
    }
  }

  __device__ __forceinline__ RowFragment<T, S> result() const {
    const float normaliser = total == 0 ? 0.0f : 1.0f / total;
    RowFragment<T, S> row;
#pragma unroll
    for (int i = 0; i < RowFragment<T, S>::count; ++i) {
      if constexpr (RowFragment<T, S>::per_word == 1) {
        row.words[i] = __float_as_uint(sum[i] * normaliser);
      } else {
        row.words[i] = pack<T>({sum[2 * i] * normaliser, sum[2 * i + 1] * normaliser});
      }
    }
    return row;
  }

 private:
  static constexpr int kTwo = S::width > 1 ? 2 : 1;  // elements that are stored together

  __device__ static int element(int e) { return S::at(e / S::width) + e % S::width; }

  // The first `most` of `count` parts.
  template <int most>
  __device__ __forceinline__ void absorb_some(const float* parts, int count, int stride, int dim) {
    float weights[most], top = maximum;
#pragma unroll
    for (int i = 0; i < most; ++i) {
      weights[i] = i < count ? parts[i * stride + dim] : kNoScore;
      top = fmaxf(top, weights[i]);
    }
    rescale(top);
#pragma unroll
    for (int i = 0; i < most; ++i) {
      const float* part = parts + i * stride;
      const float weight = exponential<T>(weights[i] - reference(top));
      total = fmaf(weight, i < count ? part[dim + 1] : 0.0f, total);
#pragma unroll
      for (int e = 0; e < S::elements; e += kTwo) {
        const bool there = i < count && element(e) < dim;
        if constexpr (kTwo == 2) {
          const float2 pair =
              there ? *reinterpret_cast<const float2*>(part + element(e)) : make_float2(0.0f, 0.0f);
          sum[e] = fmaf(weight, pair.x, sum[e]);
          sum[e + 1] = fmaf(weight, pair.y, sum[e + 1]);
        } else {
          sum[e] = fmaf(weight, there ? part[element(e)] : 0.0f, sum[e]);
        }
      }
    }
  }
};

// The beams of a warp after its groups have merged: each group has some of them to itself.
template <typename T, typename S, int beams>
struct MergedGroups {
  static constexpr int kGroups = kWarp / S::lanes;
  static constexpr int kHeld = beams > kGroups ? beams / kGroups : 1;  // by each group
  int first = 0;       // of the beams that the lane's group holds
  bool speaks = true;  // where several groups hold the same, one speaks for it

  __device__ __forceinline__ MergedGroups() {
    int held = beams;
#pragma unroll
    for (int other = S::lanes; other < static_cast<int>(kWarp); other *= 2) {
      const bool upper = (threadIdx.x & other) != 0;
      if (held == 1) {
        speaks &= !upper;
      } else {
        held /= 2;
        if (upper) first += held;
      }
    }
  }

  // Leaves the beams from `first` on in states[0], states[1], ...
  __device__ __forceinline__ void merge(QuerySoftmax<T, S> (&states)[beams]) const {
#pragma unroll
    for (int b = 0; b < beams; ++b) {
      float top = states[b].maximum;
#pragma unroll
      for (int other = S::lanes; other < static_cast<int>(kWarp); other *= 2) {
        top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, other));
      }
      states[b].rescale(top);
    }
    add<beams, S::lanes>(states);
  }

 private:
  // Groups whose lanes differ in the bit `other` tile out the `held` beams that both have.
  template <int held, int other>
  __device__ __forceinline__ static void add(QuerySoftmax<T, S> (&states)[beams]) {
    if constexpr (other < static_cast<int>(kWarp)) {
      constexpr int kKept = held > 1 ? held / 2 : 1;
      const bool upper = held > 1 && (threadIdx.x & other) != 0;
#pragma unroll
      for (int b = 0; b < kKept; ++b) {
        QuerySoftmax<T, S>&low = states[b], &high = states[held - kKept + b];
        const auto exchange = [&](float a, float b) {
          return (upper ? b : a) + __shfl_xor_sync(kAllLanes, upper ? a : b, other);
        };
        low.total = exchange(low.total, high.total);
#pragma unroll
        for (int e = 0; e < S::elements; ++e) low.sum[e] = exchange(low.sum[e], high.sum[e]);
        low.maximum = upper ? high.maximum : low.maximum;
      }
      add<kKept, other * 2>(states);
    }
  }
};

// A barrier for the first `warps` warps of the block, the only ones that come here.
__device__ __forceinline__ void synchronize(int warps) {
  asm volatile("barrier.sync 1, %0;" ::"r"(warps * static_cast<int>(kWarp)) : "memory");
}

// True in the last of `count` warps, one of each block, that call this; it then sees what the
// others wrote before.
__device__ inline bool last_to_arrive(int32_t* counter, int count) {
  const bool leads = threadIdx.x % kWarp == 0;
  __threadfence();
  __syncwarp();
  int before = leads ? atomicAdd(counter, 1) : 0;
  before = __shfl_sync(kAllLanes, before, 0);
  if (before < count - 1) return false;
  if (leads) *counter = 0;
  __threadfence();
  return true;
}

}  // namespace decoding::cuda
