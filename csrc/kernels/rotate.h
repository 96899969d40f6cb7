// Queries and keys on their way from their product to attention, here in place; in a step decode
// attention takes it along (attention.h):
//   1. each head's vector through an RMS norm, where there is one (Qwen3)
//   2. rotary positions (Su et al. 2021): with a = at * frequency[i], pair i turns,
//        (x, y) -> factor * (x cos a - y sin a, y cos a + x sin a)
//      pairs are the numbers i and i + size / 2 of a head, or with `interleaved` 2 i and 2 i + 1;
//      what lies behind `size` stays.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "kernels/stream.h"

namespace decoding {

// What happens to queries and keys; by default nothing. `at` has a position for each row.
struct Rotation {
  const int32_t* at = nullptr;         // [rows]; on CUDA older than the kernel before
  Norm q_norm = {}, k_norm = {};       // RMS, gamma [D]; none where gamma is null
  const float* frequencies = nullptr;  // [size / 2], null: nothing turns
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
