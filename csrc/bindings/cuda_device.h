// GPUs and their memory as Python sees them, without torch: decoding._C.DeviceArray and its kin.
#pragma once

#include <pybind11/pybind11.h>

namespace decoding {

void bind_cuda_device(pybind11::module_& module);
void bind_cuda_collective(pybind11::module_& module);  // of ranks

}  // namespace decoding
