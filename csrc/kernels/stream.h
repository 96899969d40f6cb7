// The streams that kernels run on. A contract is overloaded on these types; no backend's headers
// are needed.
#pragma once

namespace decoding::cpu {

enum class Isa { portable, avx2, avx512, neon };

template <Isa isa>
class Stream;  // kernels/cpu/stream.h

}  // namespace decoding::cpu

namespace decoding::cuda {

class Stream;  // kernels/cuda/stream.h

}  // namespace decoding::cuda
