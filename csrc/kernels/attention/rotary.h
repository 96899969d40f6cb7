// Queries and keys on their way from their product to attention, here in place; in a step decode
// attention takes it along (attention.h):
//   1. each head's vector through an RMS norm, where there is one (Qwen3)
//   2. rotary positions (Su et al. 2021): with a = position * frequency[i], pair i turns,
//        (x, y) -> factor * (x cos a - y sin a, y cos a + x sin a)
//      pairs are the numbers i and i + size / 2 of a head, or with `interleaved` 2 i and 2 i + 1;
//      what lies behind `size` stays.
// Models that were stretched to longer texts may have several tables of frequencies: which one a
// token turns by depends on how long its row was when it was read.
#pragma once

#include <cstdint>

#include "core/philox.h"
#include "core/types.h"
#include "kernels/stream.h"

namespace decoding {

// What a token turns by.
struct RotaryPlace {
  int position, table;
};

struct RotaryTables {
  int count = 1;
  int original = 0;  // the longest row that has the first table; each longer one has its own, up to
                     // the last
  int span = 0;      // positions of a row; any number where there is one table

  DECODING_EVERYWHERE int of_length(int length) const {
    const int table = length - original;
    return table < 0 ? 0 : table < count ? table : count - 1;
  }

  // A token that was read together with its row: `at`, as below.
  int place(int position, int length) const { return of_length(length) * span + position; }

  // at: a position, and behind it the row ends; or what `place` gives.
  DECODING_EVERYWHERE RotaryPlace place_of(int at) const {
    if (count == 1) return {at, 0};
    const int position = at % span, read = at / span, own = of_length(position + 1);
    return {position, read > own ? read : own};
  }
};

// What happens to queries and keys; by default nothing.
struct Rotation {
  const int32_t* at = nullptr;    // [rows], see RotaryTables; on CUDA older than the kernel before
  Norm q_norm = {}, k_norm = {};  // RMS, gamma [D]; none where gamma is null
  const float* frequencies = nullptr;  // [tables, size / 2], null: nothing turns
  RotaryTables tables = {};
  float factor = 1.0f;
  int size = 0;
  bool interleaved = false;

  bool any() const {
    return frequencies != nullptr || q_norm.gamma != nullptr || k_norm.gamma != nullptr;
  }
};

template <typename T>
struct RotateParams {
  T* x;  // [rows, N + Nkv, D], queries, then keys; rows `stride` apart
  Rotation rotation;
  int rows, heads, kv_heads, head_dim, stride;
};

template <typename T, cpu::Isa isa>
void rotate(cpu::Stream<isa>&, const RotateParams<T>&);
template <typename T>
void rotate(cuda::Stream&, const RotateParams<T>&);

}  // namespace decoding
