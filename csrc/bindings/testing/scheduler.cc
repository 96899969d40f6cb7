// decoding._kernels: the parts of the scheduler, which know nothing of kernels, each alone.
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/testing/kernels.h"
#include "engine/scheduler/page_pool.h"

namespace decoding {
namespace {

using Ints = std::vector<int32_t>;

void bind_page_pool(py::module_& kernels) {
  const py::arg page("page"), pages("pages");
  py::class_<PagePool>(kernels, "PagePool", "Numbers of pages; as in page_pool.h.")
      .def(py::init<int>(), pages)
      .def_property_readonly("total", &PagePool::total)
      .def_property_readonly("available", &PagePool::available)
      .def_property_readonly("used", &PagePool::used)
      .def(
          "allocate",
          [](PagePool& pool, int count) {
            Ints to;
            return pool.allocate(count, to) ? std::optional(to) : std::nullopt;
          },
          "The pages, or None.", py::arg("count"))
      .def("share", &PagePool::share, page)
      .def("release", py::overload_cast<int32_t>(&PagePool::release), page)
      .def(
          "release", [](PagePool& pool, const Ints& list) { pool.release(list); }, pages)
      .def("references", &PagePool::references, page)
      .def("set_cached", &PagePool::set_cached, page, py::arg("cached"))
      .def("on_reclaim", &PagePool::on_reclaim, py::arg("reclaimed"))
      .def("check", &PagePool::check);
}

}  // namespace

void bind_scheduler(py::module_& kernels) { bind_page_pool(kernels); }

}  // namespace decoding
