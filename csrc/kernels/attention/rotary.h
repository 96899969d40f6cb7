// Queries and keys between their projection and attention, in place:
//
//   1. x = rms_norm(x) of each head's vector, where the model has one (Qwen3)
//   2. rotary positions (RoPE, Su et al. 2021): with a = position * frequency[i], pair i becomes
//        (x, y) -> factor * (x cos a - y sin a, y cos a + x sin a)
//      A pair is the elements i and i + size / 2 of a head, or with `interleaved` 2 i and 2 i + 1;
//      elements from `size` on stay.
//
// In a step decode attention does this itself (decode.h). Models that were stretched to longer
// texts may have several tables of frequencies: the table of a token depends on how long its row
// was when the token was read.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "kernels/stream.h"

namespace decoding {

// A position, and the table of frequencies that it is rotated by.
struct RotaryPosition {
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

  // The position of a token that was read together with its row of `length`, and its table, as one
  // number.
  int pack(int position, int length) const { return of_length(length) * span + position; }

  // packed: pack(), or the last position of a row.
  DECODING_EVERYWHERE RotaryPosition unpack(int packed) const {
    if (count == 1) return {packed, 0};
    const int position = packed % span, read = packed / span, last = of_length(position + 1);
    return {position, read > last ? read : last};
  }
};

// The default leaves queries and keys as they are.
struct Rotary {
  const int32_t* positions = nullptr;  // [rows], see RotaryTables; on CUDA written before the
                                       // previous kernel
  Norm q_norm = {}, k_norm = {};       // RMS, gamma [D]; none where gamma is null
  const float* frequencies = nullptr;  // [tables, size / 2], null: no rotary positions
  RotaryTables tables = {};
  float factor = 1.0f;
  int size = 0;
  bool interleaved = false;

  bool any() const {
    return frequencies != nullptr || q_norm.gamma != nullptr || k_norm.gamma != nullptr;
  }
};

template <typename T>
struct RotaryParams {
  T* x;  // [rows, N + Nkv, D], queries, then keys; rows `stride` apart
  Rotary rotary;
  int rows, heads, kv_heads, head_dim, stride;
};

template <typename T, cpu::Isa isa>
void apply_rotary(cpu::Stream<isa>&, const RotaryParams<T>&);
template <typename T>
void apply_rotary(cuda::Stream&, const RotaryParams<T>&);

}  // namespace decoding
