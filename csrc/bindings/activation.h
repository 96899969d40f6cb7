// The names that Python has for activations.
#pragma once

#include <string>

#include "core/check.h"
#include "core/types.h"

namespace decoding {

inline Activation activation_of(const std::string& name) {
  if (name == "none") return Activation::none;
  if (name == "relu") return Activation::relu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "silu") return Activation::silu;
  CHECK(name == "sigmoid", "activation must be none, relu, gelu, gelu_tanh, silu or sigmoid, got ",
        name);
  return Activation::sigmoid;
}

}  // namespace decoding
