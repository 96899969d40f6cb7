// y[r] = norm(scale * tokens[ids[r]] + positions[at[r]]), the norm only where it is given.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "kernels/stream.h"

namespace decoding {

template <typename T>
struct EmbedParams {
  const int32_t* ids;       // [rows]
  const int32_t* at;        // [rows], position of each token
  const T* token_table;     // [V, H]
  const T* position_table;  // [positions, H], learned or sinusoidal; may be null
  Norm norm;
  T* y;  // [rows, H]
  int rows, hidden;
  float scale = 1.0f;
};

template <typename T, cpu::Isa isa>
void embed(cpu::Stream<isa>&, const EmbedParams<T>&);
template <typename T>
void embed(cuda::Stream&, const EmbedParams<T>&);

}  // namespace decoding
