// The engine of continuous batching: decoding._C.Engine.
#pragma once

#include <pybind11/pybind11.h>

namespace decoding {

class Scheduler;

void bind_engine(pybind11::module_& module);
// In output.cc: a scheduler's outputs, as Engine.wait() returns them, and its types.
pybind11::list told_by(Scheduler& scheduler, double timeout);
void bind_output(pybind11::module_& module);

}  // namespace decoding
