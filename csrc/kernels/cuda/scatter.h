// Copies of many small pieces in one launch, such as a GPU gets of a sentence that joins.
#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace decoding::cuda {

// So many words from memory that the device can read, such as the host's.
struct Piece {
  void* to;
  const void* from;
  int64_t words;  // of 4 bytes
};

void scatter(Stream& stream, const Piece* pieces, int count);

}  // namespace decoding::cuda
