// Keys and values lie in pages (Kwon et al. 2023, PagedAttention), so that a sentence takes memory
// as its rows grow, wherever it is free. With P = kPageSize, a layer's pool is [Nkv, pages, P, D],
// and all layers share the numbers of the pages. Pages that follow each other are one stretch of
// memory for a head, which CPUs read up to a quarter faster than pages that lie apart.
//
// A sentence owns cells. Its row j writes what it reads at position p into the cell
// p * lanes + j, where `lanes` is the number of its rows: those of one position are neighbours,
// since beams read them together. Cell c is in the sentence's page c / P, at c % P.
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace decoding {

constexpr int kPageSize = 16;

// Pages that so many cells take.
constexpr int64_t pages_of(int64_t cells) { return (cells + kPageSize - 1) / kPageSize; }

struct PageTable {
  const int32_t* pages = nullptr;  // [B, longest], of each sentence in their order
  int longest = 0;                 // most pages of a sentence
  int total = 0;                   // pages of the pool

  DECODING_EVERYWHERE const int32_t* of(int sentence) const {
    return pages + int64_t{sentence} * longest;
  }
};

}  // namespace decoding
