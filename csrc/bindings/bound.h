// What every session is to Python: one of the engine's, and the tensors that it reads, which must
// live as long as it does.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/tensor.h"
#include "core/arena.h"
#include "core/spec.h"
#include "engine/model/overflow.h"

namespace decoding {

namespace py = pybind11;

// With detect_overflow: a tensor's name, its largest finite number, its rows that were not finite.
using Overflow = std::vector<std::tuple<std::string, float, int32_t>>;

inline Overflow as_tuples(const std::vector<TensorOverflow>& found) {
  Overflow tuples;
  for (const TensorOverflow& each : found) {
    tuples.emplace_back(each.name, each.largest, each.not_finite);
  }
  return tuples;
}

// Session: of the engine.
template <typename Session>
class Bound {
 public:
  std::pair<std::vector<Buffer>, size_t> plan(const Limits& limits) const {
    const Arena arena = session_->plan(limits);
    return {arena.buffers(), arena.bytes()};
  }

  void bind(const Limits& limits, const py::object& pool) {
    const auto view = TensorView::of(pool, "pool", device_);
    session_->bind(limits, view.template data<uint8_t>({-1}), view.numel());
    pool_ = pool;
  }

  Overflow overflow() const { return as_tuples(session_->overflow()); }

  const int threads = 0;  // 0 and none on a GPU
  const std::string isa;

 protected:
  Bound(py::dict weights, int threads, std::string isa)
      : threads(threads), isa(std::move(isa)), device_("cpu"), weights_(std::move(weights)) {}
  Bound(py::dict weights, int device)
      : device_("cuda:" + std::to_string(device)), weights_(std::move(weights)) {}

  const std::string device_;
  const py::dict weights_;
  py::object pool_;
  std::unique_ptr<Session> session_;  // the first to go
};

// Own: a Bound.
template <typename Own>
py::class_<Own> bind_bound(py::module_& module, const char* name) {
  return py::class_<Own>(module, name)
      .def_readonly("threads", &Own::threads)
      .def_readonly("isa", &Own::isa)
      .def("plan", &Own::plan, py::arg("limits"))
      .def("bind", &Own::bind, py::arg("limits"), py::arg("pool"))
      .def("overflow", &Own::overflow);
}

}  // namespace decoding
