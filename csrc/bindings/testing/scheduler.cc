// decoding._kernels: the parts of the scheduler, which know nothing of kernels, each alone.
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "bindings/testing/kernels.h"
#include "engine/scheduler/page_allocator.h"
#include "engine/scheduler/prefix_cache.h"
#include "engine/scheduler/reading_budget.h"
#include "engine/scheduler/request_queue.h"

namespace decoding {
namespace {

using Ints = std::vector<int32_t>;

void bind_page_allocator(py::module_& kernels) {
  const py::arg page("page"), pages("pages");
  py::class_<PageAllocator>(kernels, "PageAllocator", "Numbers of pages; as in page_allocator.h.")
      .def(py::init<int>(), pages)
      .def_property_readonly("total", &PageAllocator::total)
      .def_property_readonly("available", &PageAllocator::available)
      .def_property_readonly("used", &PageAllocator::used)
      .def(
          "allocate",
          [](PageAllocator& pool, int count) {
            Ints to;
            return pool.allocate(count, to) ? std::optional(to) : std::nullopt;
          },
          "The pages, or None.", py::arg("count"))
      .def("share", &PageAllocator::share, page)
      .def("release", py::overload_cast<int32_t>(&PageAllocator::release), page)
      .def(
          "release", [](PageAllocator& pool, const Ints& list) { pool.release(list); }, pages)
      .def("references", &PageAllocator::references, page)
      .def("set_cached", &PageAllocator::set_cached, page, py::arg("cached"))
      .def("on_reclaim", &PageAllocator::on_reclaim, py::arg("reclaimed"))
      .def("check", &PageAllocator::check);
}

void bind_prefix_cache(py::module_& kernels) {
  const py::arg salt("salt"), table("table"), tokens("tokens"), pages("pages");
  py::class_<PrefixCache>(kernels, "PrefixCache", "Pages by their tokens; as in prefix_cache.h.")
      .def(py::init<PageAllocator&, bool, int>(), py::keep_alive<1, 2>(), py::arg("pool"),
           py::arg("enabled") = true, py::arg("buckets") = 0)
      .def(
          "find",
          [](PrefixCache& cache, uint64_t of, int by, const Ints& text) {
            Ints to;
            cache.find(of, by, text, to);
            return to;
          },
          "The pages of the longest known beginning.", salt, table, tokens)
      .def(
          "insert",
          [](PrefixCache& cache, uint64_t of, int by, const Ints& text, const Ints& list) {
            cache.insert(of, by, text, list);
          },
          salt, table, tokens, pages)
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
            return py::make_tuple(stats.queries, stats.hits);
          },
          "(queries, hits), in tokens.");
}

void bind_waiting(py::module_& kernels) {
  py::class_<Waiting>(kernels, "Waiting", "A request; as in request_queue.h.")
      .def(py::init(
               [](int64_t id, int32_t priority, double deadline, double arrived, int64_t pages,
                  int32_t rows) { return Waiting{id, priority, deadline, arrived, pages, rows}; }),
           py::arg("id"), py::arg("priority") = 0, py::arg("deadline") = kNever,
           py::arg("arrived") = 0.0, py::arg("pages") = 1, py::arg("rows") = 1)
      .def_readonly("id", &Waiting::id)
      .def_readonly("priority", &Waiting::priority)
      .def_readonly("deadline", &Waiting::deadline)
      .def_readonly("arrived", &Waiting::arrived)
      .def_readonly("pages", &Waiting::pages)
      .def_readonly("rows", &Waiting::rows);
}

void bind_request_queue(py::module_& kernels) {
  kernels.attr("MOST_BYPASSES") = kMostBypasses;
  kernels.attr("MOST_LOOKED") = kMostLooked;
  py::class_<RequestQueue>(kernels, "RequestQueue", "As in request_queue.h.")
      .def(py::init<int>(), py::arg("limit"))
      .def("__len__", &RequestQueue::size)
      .def("push", &RequestQueue::push, py::arg("request"))
      .def(
          "pop",
          [](RequestQueue& queue, const std::function<bool(const Waiting&)>& fits) {
            return queue.pop(fits);
          },
          "A request for which fits(request), or None.", py::arg("fits"))
      .def("cancel", &RequestQueue::cancel, py::arg("id"))
      .def(
          "expire",
          [](RequestQueue& queue, double now) {
            std::vector<int64_t> to;
            queue.expire(now, to);
            return to;
          },
          "The ids of those whose deadline has passed.", py::arg("now"));
}

void bind_reading_budget(py::module_& kernels) {
  py::class_<ReadingBudget>(kernels, "ReadingBudget", "As in reading_budget.h.")
      .def(py::init<int, bool>(), py::arg("most"), py::arg("timed"))
      .def("has_read", &ReadingBudget::has_read, py::arg("tokens"), py::arg("seconds"))
      .def("has_stepped", &ReadingBudget::has_stepped, py::arg("seconds"))
      .def("tokens", &ReadingBudget::tokens, py::arg("stepping"), py::arg("joining"),
           py::arg("others") = false);
}

}  // namespace

void bind_scheduler(py::module_& kernels) {
  bind_page_allocator(kernels);
  bind_prefix_cache(kernels);
  bind_waiting(kernels);
  bind_request_queue(kernels);
  bind_reading_budget(kernels);
}

}  // namespace decoding
