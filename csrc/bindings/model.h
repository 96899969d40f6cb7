// A model as Python holds it: its spec (models/spec.py, whose fields have the same names), and its
// weights by name.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>

#include "engine/session.h"

namespace decoding {

namespace py = pybind11;

// Throw where numbers do not belong together.
StackSpec encoder_spec(const py::handle& from);
ModelSpec model_spec(const py::handle& from);

// only: see WeightTable. The tensors must outlive the table.
WeightTable weight_table(const py::dict& weights, const std::string& device,
                         std::optional<WeightKind> only);

// The type of a model on a GPU is that of its token table, the weight `tokens`.
WeightKind kind_on_gpu(const py::dict& weights, const std::string& device,
                       const std::string& tokens);

// The type of keys and values beside numbers of `kind`: "" is that one.
WeightKind cache_kind_on_gpu(const std::string& cache, WeightKind kind);

void bind_panels(py::module_& module);  // linear weights on their way to the CPU's engine

}  // namespace decoding
