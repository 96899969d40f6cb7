// The weights of training's operators, and their gradients, as vectors:
// kernels/rows/weight.h.
#pragma once

#include <type_traits>

#include "kernels/cpu/elements.h"
#include "kernels/rows/weight.h"

namespace decoding::cpu {
namespace {

// Of columns from c on; `otherwise` where the weight is null.
template <typename T>
inline Lanes<T> load(const Weight<const T>& weight, Real<T> otherwise, int c, auto... count) {
  if (weight.same != nullptr) return load(weight.same + c, count...);
  if constexpr (sizeof(T) == 2) {
    if (weight.wide != nullptr) return load(weight.wide + c, count...);
  }
  return broadcast(otherwise);
}

template <typename T>
inline void store(const Weight<T>& to, Lanes<T> values, int c, auto... count) {
  if constexpr (sizeof(T) == 2) {
    if (to.wide != nullptr) return store(to.wide + c, values, count...);
  }
  store(to.same + c, values, count...);
}

}  // namespace
}  // namespace decoding::cpu
