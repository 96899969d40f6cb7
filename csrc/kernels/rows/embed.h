// y[r] = norm(scale * tokens[ids[r]] + table[positions[r]]), the norm only where it is given;
// in training dropout(scale * tokens[ids[r]] + table[positions[r]]), and its gradient.
#pragma once

#include <cstdint>
#include <limits>

#include "core/types.h"
#include "kernels/rows/dropout.h"
#include "kernels/stream.h"

namespace decoding {

// The rows of a vocabulary. Where they are an output projection's weight too, and of its kind, they
// may be read from its panels (kernels/linear/linear.h).
//
// Where the vocabulary is split over several ranks, the table is that of `count` tokens from
// `first` on, and y[r] of others is 0; there is no norm then.
struct TokenTable {
  const void* data = nullptr;  // [V, H], or panels of V outputs and H inputs
  WeightKind kind = WeightKind::float32;
  bool panels = false;
  int first = 0, count = std::numeric_limits<int>::max();

  bool holds(int token) const { return token >= first && token - first < count; }
};

template <typename T>
struct EmbedParams {
  const int32_t* ids;        // [rows]
  const int32_t* positions;  // [rows]
  TokenTable tokens;         // plain and of T on CUDA; float32 or bfloat16 on the CPU
  const T* position_table;   // [P, H], learned or sinusoidal; may be null
  Norm norm;
  T* y;  // [rows, H]
  int rows, hidden;
  float scale = 1.0f;
};

template <typename T, cpu::Isa isa>
void embed(cpu::Stream<isa>&, const EmbedParams<T>&);
template <typename T>
void embed(cuda::Stream&, const EmbedParams<T>&);

// Left for the host by a GPU that meets an id which a table does not have, and gives that row NaN.
// On a CPU ids are checked before.
struct IdFault {
  int64_t id;
  int rows;      // of the table
  int position;  // whether it is that of positions
  int found;     // 1 once the others are written
};

template <typename T>
struct TrainingEmbedParams {
  const int64_t* ids;                  // [rows]
  const int64_t* positions = nullptr;  // [rows], may be null: row % length
  const T* token_table;                // [V, H]
  const T* position_table = nullptr;   // [P, H], may be null
  T* y;                                // [rows, H]
  IdFault* fault = nullptr;            // memory that the host sees; null on the CPU
  Dropout dropout = {};
  int rows, hidden, vocab;
  int max_positions = 0, length = 0;  // max_positions: P
  double scale = 1.0;
};

template <typename T, cpu::Isa isa>
void training_embed(cpu::Stream<isa>&, const TrainingEmbedParams<T>&);
template <typename T>
void training_embed(cuda::Stream&, const TrainingEmbedParams<T>&);

// dtable[v] = scale * sum of dropout(dy[r]) over the rows r of id v. Rows of dtable that no row of
// dy belongs to, and that of the ignored id, are left as they are.
//
// With an order, ids ascend and order[i] is the row that ids[i] belongs to: the same ids give the
// same bits. Without one, in float on a GPU alone, ids[r] is that of row r, and dtable, which must
// be 0, is added to in any order.
template <typename T>
struct EmbedBackwardParams {
  const T* dy;                     // [rows, H]
  const int64_t* ids;              // [rows]; what is no row of the table does not count
  const int64_t* order = nullptr;  // [rows], may be null
  T* dtable;                       // [V, H]
  float* partial = nullptr;        // [2, embed_parts(rows), H], scratch for an order on CUDA
  Dropout dropout = {};
  int64_t ignored = -1;
  int rows, hidden, vocab;
  double scale = 1.0;
};

constexpr int kEmbedPart = 16;  // ids of an order that CUDA adds up at once
DECODING_EVERYWHERE constexpr int embed_parts(int rows) {
  return (rows + kEmbedPart - 1) / kEmbedPart;
}

template <typename T, cpu::Isa isa>
void embed_backward(cpu::Stream<isa>&, const EmbedBackwardParams<T>&);
template <typename T>
void embed_backward(cuda::Stream&, const EmbedBackwardParams<T>&);

}  // namespace decoding
