// Sessions and what they take: decoding._C.Session and its kin.
#pragma once

#include <pybind11/pybind11.h>

namespace decoding {

void bind_session(pybind11::module_& module);
void bind_encoder_session(pybind11::module_& module);  // an encoder alone

}  // namespace decoding
