// Where packed attention finds keys and values: in the rows of the queries' own tokens, or in
// pages. Backends read both through of(): row i of a sentence and head lies at k + rows.offset(i).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/philox.h"
#include "kernels/attention/pages.h"

namespace decoding {

template <typename C, typename Rows>
struct KeysOfHead {
  const C* k;
  const C* v;
  Rows rows;
  int length;
  int first_query;                  // position of the sentence's first query
  const float* k_scales = nullptr;  // of the head's cells, where they are e4m3
  const float* v_scales = nullptr;
};

// Rows that follow each other.
struct StridedRows {
  int stride;  // elements
  DECODING_EVERYWHERE size_t offset(int row) const { return int64_t{row} * stride; }
};

// Those of the queries' own tokens.
template <typename T>
struct PackedKeys {
  const T* k;  // [tokens, Nkv, D], rows as far apart as those of q
  const T* v;  // as k

  template <typename Params>
  DECODING_EVERYWHERE KeysOfHead<T, StridedRows> of(const Params& p, int sentence, int head) const {
    const int begin = p.offsets[sentence], length = p.offsets[sentence + 1] - begin;
    const int64_t first = int64_t{begin} * p.stride + head * p.head_dim;
    return {k + first, v + first, {p.stride}, length, 0};
  }
};

// Those of a text that is kept: a source, or a prompt that is read in chunks. A chunk's own keys
// are there, too, and those behind it do not count.
template <typename C>
struct PagedKeys {
  PagePool<C> pool;
  PageTable pages;                         // of each sentence
  const int32_t* lengths;                  // [sentences], keys
  const int32_t* first_queries = nullptr;  // [sentences], position of the first query; null: 0

  template <typename Params>
  DECODING_EVERYWHERE KeysOfHead<C, HeadCells> of(const Params& p, int sentence, int head) const {
    const HeadCells cells = pool.cells(pages.of(sentence), head, p.head_dim);
    const int first_query = first_queries == nullptr ? 0 : first_queries[sentence];
    KeysOfHead<C, HeadCells> found{pool.k, pool.v, cells, lengths[sentence], first_query};
    if constexpr (kIsFloat8<C>) {
      found.k_scales = pool.k_scales + pool.first_cell(head);
      found.v_scales = pool.v_scales + pool.first_cell(head);
    }
    return found;
  }
};

}  // namespace decoding
