// decoding._kernels: requests that get their pages as they grow, without a model.
#include "engine/scheduler/overcommit.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/testing/kernels.h"

namespace decoding {
namespace {

using Ints = std::vector<int32_t>;

// A runner that an object of Python stands in for. A request's sentence is its id.
class PyRunner : public Runner {
 public:
  explicit PyRunner(py::object hooks) : hooks_(std::move(hooks)) {}

  void extend(std::span<const Extension> extensions) override {
    for (const auto& [admitted, first] : extensions) {
      const Ints& own = admitted->own_pages;
      hooks_.attr("extend")(admitted->slot.sentence, first, Ints(own.begin() + first, own.end()));
    }
  }
  bool pause(Slot slot) override { return hooks_.attr("pause")(slot.sentence).cast<bool>(); }
  void resume(const Admitted& admitted, int steps) override {
    hooks_.attr("resume")(admitted.slot.sentence, steps, admitted.own_pages);
  }
  void save(std::span<const int32_t> pages, std::span<const int32_t> to) override {
    hooks_.attr("save")(Ints(pages.begin(), pages.end()), Ints(to.begin(), to.end()));
  }
  void restore(std::span<const int32_t> from, std::span<const int32_t> pages) override {
    hooks_.attr("restore")(Ints(from.begin(), from.end()), Ints(pages.begin(), pages.end()));
  }
  bool step() override { return hooks_.attr("step")().cast<bool>(); }

  Arena plan(const RunnerLimits&) const override { return {}; }
  void bind(const RunnerLimits&, void*, size_t) override {}
  bool is_synchronous() const override { return true; }
  int open(int, const Request&) override { return 0; }
  void read(std::span<const ReadPart>) override {}
  void join(std::span<const Admitted* const>) override {}
  void stop(Slot) override {}
  void ended(std::vector<Ended>&) override {}
  void fetch(Slot, const Results&) override {}
  int certain(Slot, const Results&) override { return 0; }

 private:
  const py::object hooks_;
};

// An Overcommit, and what a scheduler keeps of its requests.
class Requests {
 public:
  Requests(PageAllocator& pages, const py::object& runner)
      : pages_(pages), runner_(runner), overcommit_(runner_, pages_, true, 1) {}

  bool admits(int rows, int before, int steps, int shared) const {
    return overcommit_.admits(request(rows, before, steps), shared);
  }
  void admit(int64_t id, int rows, int before, int steps, int shared) {
    Entry& entry = entries_[id];
    entry.request = request(rows, before, steps);
    entry.admitted.request = &entry.request;
    entry.admitted.slot = {0, static_cast<int>(id)};
    CHECK(pages_.allocate(shared, entry.admitted.shared_pages), "shared pages are missing");
    overcommit_.admit(id, entry.admitted);
  }
  bool may_join(int64_t id) const { return overcommit_.may_join(entries_.at(id).admitted); }
  Ints join(int64_t id) {
    overcommit_.join(id);
    return entries_.at(id).admitted.own_pages;
  }
  void resume() { overcommit_.resume(); }
  bool step() { return overcommit_.step(); }
  bool leave(int64_t id) { return overcommit_.leave(id); }
  void end(int64_t id) {
    overcommit_.end(id);
    const Admitted& admitted = entries_.at(id).admitted;
    pages_.release(admitted.shared_pages);
    pages_.release(admitted.own_pages);
    entries_.erase(id);
  }
  py::tuple stats() const {
    const OvercommitStats& stats = overcommit_.stats();
    return py::make_tuple(stats.swapped, stats.swaps, stats.bytes);
  }

 private:
  struct Entry {
    RunnerRequest request;
    Admitted admitted;
  };

  static RunnerRequest request(int rows, int before, int steps) {
    RunnerRequest made;
    made.request.rows_per_sentence = rows;
    made.request.configs[0].max_new = steps;
    made.prompt.resize(before + 1);
    return made;
  }

  PageAllocator& pages_;
  PyRunner runner_;
  Overcommit overcommit_;
  std::unordered_map<int64_t, Entry> entries_;
};

}  // namespace

void bind_overcommit(py::module_& kernels) {
  const py::arg id("id"), rows("rows"), before("before"), steps("steps"), shared("shared_pages");
  py::class_<Requests>(kernels, "Overcommit", "As in overcommit.h; a page has 1 byte.")
      .def(py::init<PageAllocator&, const py::object&>(), py::keep_alive<1, 2>(), py::arg("pages"),
           py::arg("runner"))
      .def("admits", &Requests::admits, rows, before, steps, shared)
      .def("admit", &Requests::admit, id, rows, before, steps, shared)
      .def("may_join", &Requests::may_join, id)
      .def("join", &Requests::join, "Its first own pages.", id)
      .def("resume", &Requests::resume)
      .def("step", &Requests::step)
      .def("leave", &Requests::leave, id)
      .def("end", &Requests::end, id)
      .def_property_readonly("stats", &Requests::stats, "(swapped, swaps, bytes)");
}

}  // namespace decoding
