// Kernels one by one, for their tests and benchmarks: decoding._C.kernels.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "kernels/cpu/isa.h"

namespace decoding {

// Calls op(stream) on every thread of a team of that size, for the instruction set of that name.
template <typename Op>
void on_cpu(const std::string& isa, int threads, Op&& op) {
  cpu::Team team(threads);
  cpu::with_isa(isa, [&]<cpu::Isa chosen>() {
    team.run([&](int rank) {
      cpu::Stream<chosen> stream(team, rank);
      op(stream);
    });
  });
}

void bind_layers(pybind11::module_& kernels);  // layers.cc
void bind_search(pybind11::module_& kernels);  // search.cc

}  // namespace decoding
