// Calls of kernels on the CPU, kept to run one after the other without Python in between: what a
// captured graph is on a GPU. For benchmarks, since a call from Python takes longer than many a
// kernel.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "kernels/cpu/team.h"

namespace decoding {

// One at a time records; tensors of the recorded calls must outlive it.
class Recording {
 public:
  using Call = std::function<void(cpu::Team&, int rank)>;

  explicit Recording(int threads) : team_(threads) {}
  ~Recording() { end(); }

  // The one that is recording now, or null.
  static Recording* current() { return current_; }

  void begin() {
    CHECK(current_ == nullptr, "another recording has begun");
    current_ = this;
  }
  void end() {
    if (current_ == this) current_ = nullptr;
  }

  void add(int threads, Call call) {
    CHECK(threads == team_.size(), "the recording is of ", team_.size(), " threads, got ", threads);
    calls_.push_back(std::move(call));
  }

  // Runs all calls, in their order, on one team.
  void replay() {
    team_.run([this](int rank) {
      for (const Call& call : calls_) call(team_, rank);
    });
  }

 private:
  inline static Recording* current_ = nullptr;
  cpu::Team team_;
  std::vector<Call> calls_;
};

}  // namespace decoding
