// Keys and values lie in pages (Kwon et al. 2023, PagedAttention), so that a sentence takes memory
// as its rows grow, wherever it is free. With P = kPageSize, a layer's pool is [Nkv, pages, P, D],
// and all layers share the numbers of the pages. Pages that follow each other are one stretch of
// memory for a head, which CPUs read up to a quarter faster than pages that lie apart.
//
// A sentence has two lists of pages. The cells of the first are what its rows share, the source or
// the prompt: cell p holds position p. Those of the second are its own: its row j writes what it
// reads at position p into the cell p * lanes + j, where `lanes` is the number of its rows. Cells
// of one position are neighbours, since beams read them together. Cell c is in page c / P of its
// list, at c % P.
//
// Where cells are e4m3, the key and the value of each token and head have a scale of their own,
//
//   scale = the least power of two with max |x| / scale <= 448, and at least T's least normal
//   number x = scale * e4m3(x / scale)
//
// rounded to the nearest even, in magnitude at most 1.875 times T's largest power of two: T could
// not hold more. A scale of a whole page would change with each token that comes to it, and all
// that was written before would be rounded anew; so a cell is written once, and a copy of a page is
// a copy of bytes. Scales that are powers of two cost no precision, as e4m3 has as many bits at
// each magnitude, and keep products with them exact in T: wherever a kernel multiplies, it reads
// the same numbers as from cells of T. Where a number of the token is not finite, the scale is NaN,
// and so is all that is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/philox.h"
#include "core/types.h"

namespace decoding {

constexpr int kPageSize = 16;

// Whether cells have scales.
template <typename C>
constexpr bool kIsFloat8 = std::is_same_v<C, Float8>;

// Pages that so many cells take.
constexpr int64_t pages_of(int64_t cells) { return (cells + kPageSize - 1) / kPageSize; }

// A list of pages for each sentence.
struct PageTable {
  const int32_t* pages = nullptr;  // [B, longest]
  int longest = 0;                 // most pages of a sentence

  DECODING_EVERYWHERE const int32_t* of(int sentence) const {
    return pages + int64_t{sentence} * longest;
  }
};

// The cells of a list in one head of a pool.
struct HeadCells {
  const int32_t* pages;
  size_t first;  // offset of the head, in elements
  int dim;

  // The cell of the head that it is.
  DECODING_EVERYWHERE uint32_t in_head(uint32_t cell) const {
    return kPageSize * pages[cell / kPageSize] + cell % kPageSize;
  }
  DECODING_EVERYWHERE size_t offset(uint32_t cell) const {
    return first +
           uint64_t{in_head(cell)} * static_cast<uint32_t>(dim);  // one instruction of a GPU
  }
};

// A layer's pool.
template <typename C>
struct PagePool {
  C* k = nullptr;  // [Nkv, pages, kPageSize, D]
  C* v = nullptr;  // [Nkv, pages, kPageSize, D]
  int pages = 0;
  float* k_scales = nullptr;  // [Nkv, pages, kPageSize], of e4m3
  float* v_scales = nullptr;

  DECODING_EVERYWHERE size_t first_cell(int head) const { return size_t{kPageSize} * pages * head; }
  DECODING_EVERYWHERE HeadCells cells(const int32_t* list, int head, int dim) const {
    return {list, first_cell(head) * dim, dim};
  }
};

}  // namespace decoding
