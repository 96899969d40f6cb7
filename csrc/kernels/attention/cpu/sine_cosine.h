// Sine and cosine of angles as large as positions are.
#pragma once

#include "kernels/cpu/simd.h"

namespace decoding::cpu {
namespace {

struct SineCosine {
  Floats sine, cosine;
};

// Within 1e-7 for |x| up to 1e6. x = n pi / 2 + r, where r is found in double: in float the product
// would lose the remainder of thousands of turns. The coefficients are fits like those of
// simd.h, up to |r| = 0.83: n may be the neighbour of the nearest integer.
inline SineCosine sine_cosine(Floats x) {
  using Doubles [[gnu::vector_size(8 * kLanes)]] = double;
  const Ints n = nearest(0.636619772f * x);
  const Doubles turns = __builtin_convertvector(n, Doubles) * 1.5707963267948966;
  const Floats r = __builtin_convertvector(__builtin_convertvector(x, Doubles) - turns, Floats);
  const Floats z = r * r;
  Floats p = broadcast(-0.000194797307f);
  p = fma(p, z, broadcast(0.00833189394f));
  p = fma(p, z, broadcast(-0.166666508f));
  const Floats sine = fma(p * z, r, r);
  Floats q = broadcast(2.4389652e-05f);
  q = fma(q, z, broadcast(-0.00138869206f));
  q = fma(q, z, broadcast(0.0416666381f));
  const Floats cosine = fma(q * z, z, fma(-0.5f, z, broadcast(1.0f)));
  // Odd quarters of a turn swap them; the second bit of n, and of n + 1, is the sign.
  const Ints odd = (n & 1) != 0;
  const Floats first = odd ? cosine : sine, second = odd ? sine : cosine;
  return {bits(bits(first) ^ (n & 2) << 30), bits(bits(second) ^ ((n + 1) & 2) << 30)};
}

}  // namespace
}  // namespace decoding::cpu
