// The type of a weight beside activations, for the operators of training.
#pragma once

#include <type_traits>

#include "core/types.h"

namespace decoding {

// A weight, or its gradient, beside activations of type T: of T too, or of float32 where those are
// of two bytes. At most one of the pointers is not null.
template <typename T>
struct Weight {
  using Wide = std::conditional_t<std::is_const_v<T>, const float, float>;
  T* same = nullptr;
  Wide* wide = nullptr;

  explicit operator bool() const { return same != nullptr || wide != nullptr; }
};

}  // namespace decoding
