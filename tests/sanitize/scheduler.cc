// Drives a scheduler under ThreadSanitizer, without Python and without a model: callers submit,
// cancel, listen, ask for numbers and close from threads of their own, beside its loop. Exits with
// 1 where a promise is broken.
#include "engine/scheduler/scheduler.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/testing/fake_runner.h"
#include "core/check.h"

namespace decoding {
namespace {

constexpr int kCallers = 3, kEach = 300;  // requests
constexpr RunnerLimits kLimits{.rows = 8,
                               .pages = 40,
                               .tokens = 64,
                               .classes = 2,
                               .words = 0,
                               .beams = 1,
                               .source = 0,
                               .prompt = 64,
                               .target = 32,
                               .candidates = 1};

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "scheduler: %s\n", what);
  std::exit(1);
}

struct FakeEngine {
  FakeRunner runner;
  Scheduler scheduler{runner, kLimits, ModelSpec{}, 1, 1 << 20, true, false};

  explicit FakeEngine(FakeRunner::Stepping stepping) : runner(kLimits, std::move(stepping)) {}
};

// Of many lengths; some stream, some are soon too late.
Submission submission(int number) {
  Submission made;
  made.request.request.configs[0].max_new = 1 + number % 31;
  made.request.prompt.assign(1 + number % 60, number % 3);
  made.priority = number % 5 == 0;
  made.streams = number % 2 == 0;
  if (number % 7 == 0) made.seconds = 1e-4;
  if (number % 11 == 0) made.max_time = 1e-4;
  return made;
}

// Submits requests, some of them in pairs, and cancels some; returns how many it could submit.
int call(Scheduler& scheduler, int caller) {
  for (int i = 0, step = 1; i < kEach; i += step) {
    step = i % 3 == 0 ? 2 : 1;
    try {
      std::vector<Submission> made;
      for (int j = i; j < i + step; ++j) made.push_back(submission(caller + j));
      const int64_t id = scheduler.submit(std::move(made), step == 2);
      if (i % 4 == 0) scheduler.cancel(id);
      if (i % 8 == 0) scheduler.cancel(id);
      expect(scheduler.stats().pages_used <= kLimits.pages, "more pages are used than there are");
    } catch (const Error&) {
      return i;
    }
  }
  return kEach;
}

// What a listener has heard.
struct Heard {
  std::set<int64_t> ended;
  int64_t faults = 0;
};

// Listens until the scheduler has ended.
Heard listen(Scheduler& scheduler, const std::atomic<bool>& closed) {
  Heard heard;
  Outputs outputs;
  const auto take = [&](double seconds) {
    scheduler.wait(seconds, outputs);
    for (const NewTokens& made : outputs.tokens) {
      expect(!heard.ended.contains(made.id), "a request was told of after its end");
    }
    const auto hear = [&](const Output& end) {
      expect(heard.ended.insert(end.id).second, "a request has ended twice");
      heard.faults += end.kind == OutputKind::fault;
    };
    for (const Output& end : outputs.ends) hear(end);
    for (const BatchOutput& batch : outputs.batches) {
      for (const Output& end : batch.ends) hear(end);
    }
    return !outputs.empty();
  };
  try {
    while (!closed) take(0.01);
    while (take(0)) {
    }
  } catch (const Error&) {
    heard.faults += 1 << 20;  // the loop has failed, as whoever listens hears
  }
  return heard;
}

// All of it side by side; a request that could be submitted ends once. Returns what was heard.
Heard live(FakeRunner::Stepping stepping, bool drain, bool early) {
  FakeEngine engine(std::move(stepping));
  Scheduler& scheduler = engine.scheduler;
  std::atomic<bool> closed = false;
  std::atomic<int> submitted = 0;
  Heard heard;
  std::thread listener([&] { heard = listen(scheduler, closed); });
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] { submitted += call(scheduler, caller * kEach); });
  }
  if (early) scheduler.close(drain);
  for (std::thread& caller : callers) caller.join();
  scheduler.close(drain);
  closed = true;
  listener.join();
  expect(heard.faults > 0 || static_cast<int>(heard.ended.size()) == submitted,
         "a request was not told of its end");
  return heard;
}

}  // namespace
}  // namespace decoding

int main() {
  using namespace decoding;
  const auto nothing = [](int64_t) {};
  for (const bool drain : {true, false}) {
    for (const bool early : {false, true}) {
      expect(live(nothing, drain, early).faults == 0, "a request failed");
    }
  }
  for (const int64_t fails_in : {0, 1, 40}) {
    const auto stepping = [=](int64_t step) { CHECK(step != fails_in, "it was to fail"); };
    expect(live(stepping, true, false).faults > 0, "nobody heard of a failure");
  }
  std::puts("scheduler: done");
}
