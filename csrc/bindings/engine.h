// The engine of continuous batching: decoding._C.Engine.
#pragma once

#include <pybind11/pybind11.h>

namespace decoding {

void bind_engine(pybind11::module_& module);
void bind_output(pybind11::module_& module);  // of its news, output.cc

}  // namespace decoding
