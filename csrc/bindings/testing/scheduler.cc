// decoding._kernels: the parts of the scheduler, which know nothing of kernels, each alone.
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/testing/kernels.h"
#include "engine/scheduler/page_pool.h"
#include "engine/scheduler/prefix_cache.h"

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

void bind_prefix_cache(py::module_& kernels) {
  const py::arg salt("salt"), tokens("tokens"), pages("pages");
  py::class_<PrefixCache>(kernels, "PrefixCache", "Pages by their tokens; as in prefix_cache.h.")
      .def(py::init<PagePool&, bool, int>(), py::keep_alive<1, 2>(), py::arg("pool"),
           py::arg("enabled") = true, py::arg("buckets") = 0)
      .def(
          "find",
          [](PrefixCache& cache, uint64_t of, const Ints& text) {
            Ints to;
            cache.find(of, text, to);
            return to;
          },
          "The pages of the longest known beginning.", salt, tokens)
      .def(
          "insert",
          [](PrefixCache& cache, uint64_t of, const Ints& text, const Ints& list) {
            cache.insert(of, text, list);
          },
          salt, tokens, pages)
      .def(
          "find_source",
          [](PrefixCache& cache, uint64_t of, const Ints& text) {
            Ints to;
            return cache.find_source(of, text, to) ? std::optional(to) : std::nullopt;
          },
          "All pages of the source, or None.", salt, tokens)
      .def(
          "insert_source",
          [](PrefixCache& cache, uint64_t of, const Ints& text, const Ints& list) {
            cache.insert_source(of, text, list);
          },
          salt, tokens, pages)
      .def("clear", &PrefixCache::clear)
      .def_property_readonly(
          "stats",
          [](const PrefixCache& cache) {
            const PrefixCacheStats& stats = cache.stats();
            return py::make_tuple(stats.queries, stats.hits, stats.tokens_found);
          },
          "(queries, hits, tokens_found)");
}

}  // namespace

void bind_scheduler(py::module_& kernels) {
  bind_page_pool(kernels);
  bind_prefix_cache(kernels);
}

}  // namespace decoding
