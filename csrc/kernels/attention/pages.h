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
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/philox.h"

namespace decoding {

constexpr int kPageSize = 16;

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

  DECODING_EVERYWHERE size_t offset(uint32_t cell) const {
    const uint32_t in_pool = kPageSize * pages[cell / kPageSize] + cell % kPageSize;
    return first + uint64_t{in_pool} * static_cast<uint32_t>(dim);  // one instruction of a GPU
  }
};

// A layer's pool.
template <typename C>
struct PagePool {
  C* k = nullptr;  // [Nkv, pages, kPageSize, D]
  C* v = nullptr;  // [Nkv, pages, kPageSize, D]
  int pages = 0;

  DECODING_EVERYWHERE HeadCells cells(const int32_t* list, int head, int dim) const {
    return {list, size_t{kPageSize} * pages * head * dim, dim};
  }
};

}  // namespace decoding
