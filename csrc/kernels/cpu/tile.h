// Matrix products on pieces that fit the caches: c += a b, in tiles whose sums stay in registers.
#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/cpu/simd.h"

namespace decoding::cpu {
namespace {

template <typename T>
using Vector = std::conditional_t<std::is_same_v<T, float>, Floats, Ints>;

// How a word of a and one of b are multiplied; linear/cpu/dot.h has those of other types.
struct Float32Dot {
  using Left = float;
  using Right = float;
  using Sum = float;
  static constexpr int kInputs = 1, kParts = 1;
  static Floats right(Floats line, int) { return line; }
  static Floats add(Floats left, Floats right, Floats sum) { return fma(left, right, sum); }
};

// Whether a Dot takes rows in pairs: then multiply_tile is that of linear/cpu/mma.h.
template <typename Dot>
concept AddsPairs = requires { &Dot::add_pairs; };

constexpr int kTileRows = 6;   // with 4 vectors of columns, 24 of 32 registers hold sums
constexpr int kTallRows = 12;  // the same with half the vectors, where there are few columns

// Vectors of columns in a tile of `rows` rows: as many as the registers hold.
constexpr int tile_vectors(int rows) {
  if (rows > kTileRows) return tile_vectors(kTileRows) / 2;
  if (kRegisters == 32) return kLanes == 4 && rows == 1 ? 8 : 4;
  return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
}

// A matrix whose rows are `stride` elements apart.
template <typename T>
struct MatrixView {
  T* data;
  size_t stride;

  T& at(size_t row, size_t column) const { return data[row * stride + column]; }
};

// One whose columns are.
template <typename T>
struct TransposedView {
  T* data;
  size_t stride;

  T& at(size_t row, size_t column) const { return data[column * stride + row]; }
};

// Memory that is asked for while a tile works: `lines` cache lines of each row.
template <int lines>
struct Prefetch {
  MatrixView<const std::byte> from = {};

  void operator()(int k) const {
    for (int line = 0; line < lines; ++line) {
      __builtin_prefetch(from.data + k * from.stride + line * kLine);
    }
  }

  template <int count>
  Prefetch<count> part(int first) const {
    return {{from.data + first * kLine, from.stride}};
  }

  static constexpr int kLine = 64;
};

// yes: sums begin with zeros; no: they are added to those in c.
enum class Begin { no, yes };

// Takes the sums of tiles into c.
template <typename T>
struct Into {
  MatrixView<T> c;
  Begin begin = Begin::no;

  void operator()(int row, int column, Vector<T> sum) const {
    T* to = &c.at(row, column);
    store(to, (begin == Begin::yes ? Vector<T>{} : load(to)) + sum);
  }
};

// Calls take(r, j, sums) with vectors of sum over k < depth of a[r][k] * b[k][j], which is added up
// in ascending order, one addition at a time: the bits do not depend on the shape of the tile. The
// product of a word of a and one of b is `Dot`'s: of two floats, or of a few smaller numbers.
// The tile's first column is `column`.
template <typename Dot, int rows, int vectors, int lines, typename Left, typename Take>
  requires(!AddsPairs<Dot>)
inline void multiply_tile(Left a, MatrixView<const typename Dot::Right> b, int column, Take take,
                          int depth, Prefetch<lines> prefetch) {
  using Sums = Vector<typename Dot::Sum>;
  Sums sum[rows][vectors];
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sum[r][v] = Sums{};
  }
  const typename Dot::Right* line = b.data + column;
  for (int k = 0; k < depth; ++k, line += b.stride) {
    prefetch(k);
#pragma GCC unroll 2
    for (int part = 0; part < Dot::kParts; ++part) {
      decltype(Dot::right(load(line), part)) right[vectors];
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) right[v] = Dot::right(load(line + v * kLanes), part);
#pragma GCC unroll 12
      for (int r = 0; r < rows; ++r) {
        const auto left = broadcast(a.at(r, k * Dot::kParts + part));
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) sum[r][v] = Dot::add(left, right[v], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) take(r, column + v * kLanes, sum[r][v]);
  }
}

// The same for up to `rows` rows and any whole number of vectors of columns.
template <typename Dot = Float32Dot, int lines = 0, int rows = kTileRows,
          typename Left = MatrixView<const typename Dot::Left>, typename Take>
inline void multiply_rows(int count, Left a, MatrixView<const typename Dot::Right> b, Take take,
                          int depth, int columns, Prefetch<lines> prefetch = {}) {
  if constexpr (rows > 1) {
    if (count < rows) {
      return multiply_rows<Dot, lines, rows - 1>(count, a, b, take, depth, columns, prefetch);
    }
  }
  constexpr int vectors = tile_vectors(rows), width = vectors * kLanes;
  // Requests spread over the tiles of 64 columns.
  constexpr int share = lines == 0 ? 0 : (lines * width + 63) / 64;
  int j = 0;
  for (; j + width <= columns; j += width) {
    const int line = j / width * share;
    if (line < lines) {
      const auto part = prefetch.template part<share>(line);
      multiply_tile<Dot, rows, vectors>(a, b, j, take, depth, part);
    } else {
      multiply_tile<Dot, rows, vectors>(a, b, j, take, depth, Prefetch<0>{});
    }
  }
  const auto multiply_last = [&]<int last>() {
    multiply_tile<Dot, rows, last>(a, b, j, take, depth, Prefetch<0>{});
  };
  if constexpr (vectors == 4) {  // two or three have sums enough to hide the latency, one has not
    if (columns - j == 3 * kLanes) return multiply_last.template operator()<3>();
    if (columns - j == 2 * kLanes) return multiply_last.template operator()<2>();
  }
  for (; j < columns; j += kLanes) multiply_last.template operator()<1>();
}

}  // namespace
}  // namespace decoding::cpu
