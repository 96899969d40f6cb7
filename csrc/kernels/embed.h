// y[r] = norm(scale * tokens[ids[r]] + positions[at[r]]), the norm only where gamma is given.
#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace decoding {

template <typename T>
struct EmbedParams {
  const int32_t* ids;            // [rows]
  const int32_t* at;             // [rows], position of each token
  const T* token_table;          // [V, H]
  const T* position_table;       // [positions, H], learned or sinusoidal; may be null
  const float* gamma = nullptr;  // [H], may be null
  const float* beta = nullptr;   // [H], may be null
  T* y;                          // [rows, H]
  int rows, hidden;
  float scale = 1.0f, eps = 1e-5f;
};

template <typename T, cpu::Isa isa>
void embed(cpu::Stream<isa>&, const EmbedParams<T>&);

}  // namespace decoding
