// y = softmax(bias(q k^T)) v for the queries of a sentence and key head, a block of keys and values
// at a time: scores, an online softmax, and the weighted sum. Four queries share what is loaded; a
// query's bits are the same alone.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/attention/cpu/bias.h"
#include "kernels/attention/cpu/online_softmax.h"
#include "kernels/attention/head_dim.h"
#include "kernels/cpu/bfloat16.h"

namespace decoding::cpu {
namespace {

constexpr int kBlock = 32;  // positions
constexpr int kTile = 4;    // queries whose sums are in registers together

// Rows of one head's keys and values, and the queries that attend to them.
template <typename C>
struct Block {
  const C* k;
  const C* v;
  size_t offsets[kBlock];  // of each row, the same in k and in v; the last one is repeated
  int count;               // rows; 0: nothing to attend to
  int begin, end;          // queries
  int distance;            // from them to the first row
};

struct Query {
  int head;
  alignas(64) float q[kMaxHeadDim];    // scaled
  alignas(64) float sum[kMaxHeadDim];  // of the weighted values
  alignas(64) float scores[kBlock];    // then the weights
  OnlineSoftmax softmax;
};

// Lanes whose index has `bit` keep the sum of two neighbours of b, the others of a. Doing this for
// all bits turns kLanes vectors into one that holds the sum of each; every lane adds in the same
// order.
template <int bit = 1>
inline void add_neighbours(Floats (&sums)[kLanes]) {
  if constexpr (bit < kLanes) {
    const Ints odd = (lane_ids() & bit) != 0;
#pragma GCC unroll 8
    for (int i = 0; i < kLanes; i += 2 * bit) {
      const Floats a = sums[i], b = sums[i + bit];
      sums[i] = (odd ? b : a) + __builtin_shuffle(odd ? a : b, lane_ids() ^ bit);
    }
    add_neighbours<2 * bit>(sums);
  }
}

// In lane query * rows + i: q . k of that query and row first + i. The values of the rows are
// fetched meanwhile.
template <int queries, typename C>
inline Floats dots(const Query* query, const Block<C>& block, int first, int dim) {
  constexpr int rows = kLanes / queries, step = std::min(rows, 4);
  Floats sums[kLanes];
#pragma GCC unroll 4
  for (int top = 0; top < rows; top += step) {
    const C *k[step], *v[step];
    Floats part[step * queries] = {};
#pragma GCC unroll 4
    for (int i = 0; i < step; ++i) {
      k[i] = block.k + block.offsets[first + top + i];
      v[i] = block.v + block.offsets[first + top + i];
    }
    for_vectors(dim, [&](int d, auto... tail) {
#pragma GCC unroll 4
      for (int i = 0; i < step; ++i) {
        __builtin_prefetch(v[i] + d);
        const Floats key = load(k[i] + d, tail...);
#pragma GCC unroll 4
        for (int j = 0; j < queries; ++j) {
          part[j * step + i] = fma(load(query[j].q + d), key, part[j * step + i]);
        }
      }
    });
#pragma GCC unroll 16
    for (int i = 0; i < step * queries; ++i) sums[i / step * rows + top + i % step] = part[i];
  }
  add_neighbours(sums);
  return sums[0];
}

// scores[i] = q . k[i] with its bias, where there is one; -inf after the last row up to a whole
// vector.
template <int queries, typename C>
void score(Query* query, const Block<C>& block, const AttentionBias* bias, int dim) {
  constexpr int rows = kLanes / queries;
  for (int first = 0; first < block.count; first += rows) {
    alignas(64) float lanes[kLanes];
    store(lanes, dots<queries>(query, block, first, dim));
#pragma GCC unroll 4
    for (int j = 0; j < queries; ++j) {
      __builtin_memcpy(query[j].scores + first, lanes + j * rows, rows * sizeof(float));
    }
  }
  const int last = (block.count - 1) / kLanes * kLanes;
  for (int j = 0; j < queries; ++j) {
    if (bias != nullptr) {
      alignas(64) float line[kBlock];
      bias_by_distance(*bias, query[j].head, block.distance, last + kLanes, line);
      apply_bias(bias->cap, line, query[j].scores, last + kLanes);
    }
    float* to = query[j].scores + last;
    store(to, lane_ids() + last < block.count ? load(to) : broadcast(-__builtin_inff()));
  }
}

// sum[d] = sum[d] * rescale + the weighted rows of v, for `vectors` vectors of d. Even and odd
// rows are added up apart, which halves the wait of each addition for the one before. The keys of
// the next block are fetched meanwhile.
template <int queries, int vectors, typename C, typename... Tail>
inline void accumulate(Query* query, const float* rescale, const Block<C>& block,
                       const Block<C>& next, int d, Tail... tail) {
  Floats even[queries][vectors], odd[queries][vectors] = {};
#pragma GCC unroll 4
  for (int j = 0; j < queries; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) even[j][v] = load(query[j].sum + d + v * kLanes) * rescale[j];
  }
  const auto add = [&](int i, Floats(&to)[queries][vectors]) {
    const C* row = block.v + block.offsets[i] + d;
    const C* ahead = next.k + next.offsets[i] + d;
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      __builtin_prefetch(ahead + v * kLanes);
      const Floats value = load(row + v * kLanes, tail...);
#pragma GCC unroll 4
      for (int j = 0; j < queries; ++j) to[j][v] = fma(query[j].scores[i], value, to[j][v]);
    }
  };
  int i = 0;
  for (; i + 2 <= block.count; i += 2) {
    add(i, even);
    add(i + 1, odd);
  }
  if (i < block.count) add(i, even);
#pragma GCC unroll 4
  for (int j = 0; j < queries; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      store(query[j].sum + d + v * kLanes, even[j][v] + odd[j][v]);
    }
  }
}

template <int queries, typename C>
void attend(Query* query, const Block<C>& block, const Block<C>& next, const AttentionBias* bias,
            int dim) {
  score<queries>(query, block, bias, dim);
  const int whole = (block.count + kLanes - 1) / kLanes * kLanes;
  float rescale[queries];
  for (int j = 0; j < queries; ++j) rescale[j] = query[j].softmax.weigh(query[j].scores, whole);
  constexpr int kWide = queries == 1 ? 4 : kLanes == 16 ? 2 : 1;  // as the registers allow
  int d = 0;
  for (; d + kWide * kLanes <= dim; d += kWide * kLanes) {
    accumulate<queries, kWide>(query, rescale, block, next, d);
  }
  for (; d + kLanes <= dim; d += kLanes) accumulate<queries, 1>(query, rescale, block, next, d);
  if (d < dim) accumulate<queries, 1>(query, rescale, block, next, d, dim - d);
}

// All queries of the block, while `next` is fetched from memory. bias: may be null.
template <typename C>
void attend(Query* queries, const Block<C>& block, const Block<C>& next, const AttentionBias* bias,
            int dim) {
  if (block.count == 0) return;
  int j = block.begin;
  for (; j + kTile <= block.end; j += kTile) attend<kTile>(queries + j, block, next, bias, dim);
  for (; j < block.end; ++j) attend<1>(queries + j, block, next, bias, dim);
}

}  // namespace
}  // namespace decoding::cpu
