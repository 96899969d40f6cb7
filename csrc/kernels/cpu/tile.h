// Matrix products on pieces that fit the caches: c += a b, in tiles whose sums stay in registers.
#pragma once

#include <cstddef>

#include "kernels/cpu/simd.h"

namespace decoding::cpu {
namespace {

constexpr int kTileRows = 6;  // with 64 columns, 24 of the 32 registers of AVX-512 hold sums

// Vectors of columns in a tile of `rows` rows: as many as the registers hold.
constexpr int tile_vectors(int rows) {
  if (kLanes == 16) return 4;
  return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
}

// A matrix whose rows are `stride` elements apart.
template <typename T>
struct Rows {
  T* data;
  size_t stride;
};

// c[r][j] += sum over k < depth of a[r][k] * b[k][j], which is added up first, in ascending order,
// one fused multiply-add at a time: the bits do not depend on the shape of the tile. Calls ahead(k)
// on the way, to prefetch.
template <int rows, int vectors, typename Ahead>
inline void multiply_tile(Rows<const float> a, Rows<const float> b, Rows<float> c, int depth,
                          Ahead&& ahead) {
  Floats sum[rows][vectors] = {};
  const float* line = b.data;
  for (int k = 0; k < depth; ++k, line += b.stride) {
    ahead(k);
    for (int v = 0; v < vectors; ++v) {
      const Floats column = load(line + v * kLanes);
      for (int r = 0; r < rows; ++r) {
        sum[r][v] = fma(a.data[r * a.stride + k], column, sum[r][v]);
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) {
      float* to = c.data + r * c.stride + v * kLanes;
      store(to, load(to) + sum[r][v]);
    }
  }
}

// The same for `rows` <= kTileRows and any number of whole vectors of columns.
template <int rows = kTileRows, typename Ahead>
inline void multiply_rows(int count, Rows<const float> a, Rows<const float> b, Rows<float> c,
                          int depth, int columns, Ahead&& ahead) {
  if constexpr (rows > 1) {
    if (count < rows) return multiply_rows<rows - 1>(count, a, b, c, depth, columns, ahead);
  }
  constexpr int width = tile_vectors(rows) * kLanes;
  int j = 0;
  for (; j + width <= columns; j += width) {
    multiply_tile<rows, tile_vectors(rows)>(a, {b.data + j, b.stride}, {c.data + j, c.stride},
                                            depth, ahead);
  }
  for (; j < columns; j += kLanes) {
    multiply_tile<rows, 1>(a, {b.data + j, b.stride}, {c.data + j, c.stride}, depth, ahead);
  }
}

}  // namespace
}  // namespace decoding::cpu
