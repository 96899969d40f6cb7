// The streams of ranks that share out a model, on which they meet. They are those of
// kernels/stream.h with a `collective()`: null where one process has the whole model.
#pragma once

#include "kernels/stream.h"

namespace decoding::cpu {

template <Isa isa>
class SplitStream;  // kernels/cpu/split_stream.h
class Collective;   // kernels/cpu/collective.h

}  // namespace decoding::cpu

namespace decoding::cuda {

class SplitStream;  // kernels/cuda/split_stream.h
class Collective;   // kernels/cuda/collective.h

}  // namespace decoding::cuda
