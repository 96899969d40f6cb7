// A runner without a model: its steps take no time, and a request ends after as many as it may
// have. What a scheduler does, and how long that takes, is seen with it alone.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "engine/runner.h"
#include "engine/search/request_class.h"

namespace decoding {

class FakeRunner : public Runner {
 public:
  // Called in each step with its number, counted from 0. It may throw.
  using Stepping = std::function<void(int64_t step)>;

  FakeRunner(const RunnerLimits& limits, Stepping stepping)
      : limits_(limits),
        stepping_(std::move(stepping)),
        sentences_(limits.classes, std::vector<Sentence>(limits.rows)) {}

  Arena plan(const RunnerLimits&) const override { return {}; }
  void bind(const RunnerLimits&, void*, size_t) override {}
  bool is_synchronous() const override { return true; }
  int open(int, const Request& request) override {
    return limits_.rows / class_key(request).rows();
  }
  void read(std::span<const ReadPart>) override {}

  void join(std::span<const Admitted* const> joining) override {
    for (const Admitted* admitted : joining) {
      of(admitted->slot) = {admitted->request->request.steps(), 0};
      ++running_;
    }
  }
  void extend(std::span<const Extension>) override {}
  bool pause(Slot) override { return true; }
  void resume(const Admitted&, int) override {}
  void save(std::span<const int32_t>, std::span<const int32_t>) override {}
  void restore(std::span<const int32_t>, std::span<const int32_t>) override {}
  void stop(Slot slot) override {
    Sentence& sentence = of(slot);
    sentence.most = std::min(sentence.most, sentence.steps + 1);
  }

  bool step() override {
    if (running_ == 0) return false;
    stepping_(steps_++);
    for (int c = 0; c < limits_.classes; ++c) {
      for (int id = 0; id < limits_.rows; ++id) step({c, id});
    }
    return true;
  }

  void ended(std::vector<Ended>& to) override {
    to.insert(to.end(), ended_.begin(), ended_.end());
    ended_.clear();
  }

  int64_t steps() const { return steps_; }

  // Its tokens are the numbers of its steps.
  void fetch(Slot slot, const Results& results) override { certain(slot, results); }
  int certain(Slot slot, const Results& results) override {
    const int steps = of(slot).steps;
    for (int i = results.from; i < steps; ++i) results.tokens[i] = i;
    results.lengths[0] = steps;
    return steps > 0 ? 1 : 0;
  }

 private:
  // Of one row; it runs until its steps are as many as it may have.
  struct Sentence {
    int most = -1, steps = 0;
  };

  Sentence& of(Slot slot) { return sentences_[slot.request_class][slot.sentence]; }

  void step(Slot slot) {
    Sentence& sentence = of(slot);
    if (sentence.most < 0) return;
    if (sentence.steps < sentence.most) ++sentence.steps;
    if (sentence.steps < sentence.most) return;
    sentence.most = -1;
    --running_;
    ended_.push_back({slot, 0});
  }

  const RunnerLimits limits_;
  const Stepping stepping_;
  std::vector<std::vector<Sentence>> sentences_;  // [class][sentence]
  std::vector<Ended> ended_;
  int running_ = 0;
  int64_t steps_ = 0;
};

}  // namespace decoding
