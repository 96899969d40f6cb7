// y[r] = norm(scale * tokens[ids[r]] + positions[at[r]]), the norm only where it is given.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "kernels/stream.h"

namespace decoding {

// The rows of a vocabulary. Where they are an output projection's weight too, and of its kind, they
// may be read from its panels (kernels/linear.h).
struct TokenTable {
  const void* data = nullptr;  // [V, H], or panels of V outputs and H inputs
  WeightKind kind = WeightKind::float32;
  bool panels = false;
};

template <typename T>
struct EmbedParams {
  const int32_t* ids;       // [rows]
  const int32_t* at;        // [rows], position of each token
  TokenTable tokens;        // plain and of T on CUDA; float32 or bfloat16 on the CPU
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
