// decoding._kernels: a scheduler whose runner has no model, and how long it takes between steps.
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/engine.h"
#include "bindings/testing/fake_runner.h"
#include "bindings/testing/kernels.h"
#include "bindings/unlocked.h"
#include "engine/scheduler/scheduler.h"

namespace decoding {
namespace {

constexpr int kPrompt = 17;  // tokens, the last of which the first step reads

// Greedy search of exactly so many steps.
Submission submission(int prompt, int steps, bool streams) {
  Submission made;
  made.request.request.configs[0].max_new = steps;
  made.request.prompt.assign(prompt, 1);
  made.streams = streams;
  return made;
}

RunnerLimits limits_of(int rows, int pages, int target) {
  return {.rows = rows,
          .pages = pages,
          .tokens = 1024,
          .classes = 8,
          .words = 0,
          .beams = 1,
          .source = 0,
          .prompt = kPrompt,
          .target = target,
          .candidates = 1};
}

// Measures the time from the end of one step to the next, once that is asked for.
class TimedRunner : public FakeRunner {
 public:
  TimedRunner(const RunnerLimits& limits, Stepping stepping, int64_t first, int64_t count)
      : FakeRunner(limits, std::move(stepping)), first_(first), seconds_(count) {}

  bool step() override {
    const int64_t at = steps() - first_, count = static_cast<int64_t>(seconds_.size());
    if (at >= 0 && at < count) seconds_[at] = seconds(Clock::now() - ended_);
    if (at == count) done_ = true;
    const bool stepped = FakeRunner::step();
    ended_ = Clock::now();
    return stepped;
  }

  bool done() const { return done_; }
  // Once it is done.
  const std::vector<double>& taken() const { return seconds_; }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

  const int64_t first_;
  std::vector<double> seconds_;
  Clock::time_point ended_;
  std::atomic<bool> done_ = false;
};

// Seconds from each step to the next, while all rows run. churn: a request joins and another leaves
// in each step; else all go on.
std::vector<double> scheduling_times(int rows, int steps, bool churn, bool stream) {
  const int target = churn ? rows : steps + 3 * rows;
  const int pages = 2 * rows * static_cast<int>(1 + pages_of(target));
  const RunnerLimits limits = limits_of(rows, pages, target);
  Scheduler* scheduler = nullptr;
  std::atomic<bool> submitted = false;
  const auto come = [&](int64_t step) {
    if (step == 0) submitted.wait(false);
    if (churn) scheduler->submit({submission(kPrompt, target, stream)});
  };
  TimedRunner runner(limits, come, 2 * rows, steps);
  Scheduler running(runner, limits, ModelSpec{}, 1, 1 << 20, false, false);
  scheduler = &running;
  // Where they end in turn, each new one finds a row.
  for (int i = 0; i < rows; ++i) {
    running.submit({submission(kPrompt, churn ? i + 1 : target, stream)});
  }
  submitted = true;
  submitted.notify_one();
  Outputs heard;
  while (!runner.done()) running.wait(0.01, heard);
  std::vector<double> taken = runner.taken();
  running.close(!churn);  // whoever listens late, the same requests have had results
  return taken;
}

// What a decoding._C.Engine is to who listens to it. A step fails, if one is named.
class FakeEngine {
 public:
  FakeEngine(int rows, int pages, int64_t fails_in)
      : limits_(limits_of(rows, pages, pages * kPageSize)),
        runner_(limits_,
                [=](int64_t step) { CHECK(step != fails_in, "step ", step, " was to fail"); }),
        scheduler_(runner_, limits_, ModelSpec{}, 1, 1 << 20, true, false) {}

  int64_t submit(int steps, bool stream) {
    return scheduler_.submit({submission(kPrompt, steps, stream)});
  }
  // Of so many steps each.
  int64_t submit_together(const Ids& steps) {
    std::vector<Submission> submissions;
    for (const int each : steps) submissions.push_back(submission(kPrompt, each, false));
    return scheduler_.submit(std::move(submissions), true);
  }
  void cancel(int64_t id) { scheduler_.cancel(id); }
  py::list wait(double timeout) { return told_by(scheduler_, timeout); }
  void close(bool drain) { scheduler_.close(drain); }

 private:
  const RunnerLimits limits_;
  FakeRunner runner_;
  Scheduler scheduler_;
};

// The end of a request whose rows have these tokens; others follow them, which nobody may read.
Output end_of(int64_t id, const std::vector<Ids>& rows) {
  size_t width = 0;
  for (const Ids& row : rows) width = std::max(width, row.size());
  Output end(id, OutputKind::end);
  end.resize(static_cast<int>(rows.size()), static_cast<int>(width));
  std::fill(end.tokens.begin(), end.tokens.end(), -9);
  for (size_t k = 0; k < rows.size(); ++k) {
    end.lengths[k] = static_cast<int32_t>(rows[k].size());
    std::copy(rows[k].begin(), rows[k].end(), end.tokens.begin() + k * width);
  }
  return end;
}

}  // namespace

void bind_scheduling(py::module_& kernels) {
  const py::call_guard<Unlocked> unlocked;  // of Python's lock
  py::class_<FakeEngine>(kernels, "FakeEngine", "An engine without a model, as in fake_runner.h.")
      .def(py::init<int, int, int64_t>(), py::kw_only(), py::arg("rows"), py::arg("pages"),
           py::arg("fails_in") = -1)
      .def("submit", &FakeEngine::submit, py::arg("steps"), py::arg("stream") = false, unlocked)
      .def("submit_together", &FakeEngine::submit_together, py::arg("steps"))
      .def("cancel", &FakeEngine::cancel, py::arg("id"), unlocked)
      .def("wait", &FakeEngine::wait, py::arg("timeout"))
      .def("close", &FakeEngine::close, py::arg("drain"), unlocked);
  kernels.def("end_of", &end_of, py::arg("id"), py::arg("rows"));
  kernels.def("scheduling_times", &scheduling_times,
              "Seconds from each of so many steps of no time to the next, all rows running. churn: "
              "a request joins and another leaves in each.",
              py::arg("rows"), py::arg("steps"), py::kw_only(), py::arg("churn"), py::arg("stream"),
              unlocked);
}

}  // namespace decoding
