// What is done to the logits of a call: decoding._C.Controls and decoding._C.Warpers.
#pragma once

#include <pybind11/pybind11.h>

namespace decoding {

void bind_processing(pybind11::module_& module);

}  // namespace decoding
