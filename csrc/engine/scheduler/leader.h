// The runner of rank 0 of a model that is split over ranks: all that its scheduler asks of it, the
// runners of the others do, too (follower.h). So one scheduler, with one clock, decides for all of
// them, and none of its decisions need be made twice.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/runner.h"
#include "engine/scheduler/message.h"
#include "kernels/collective/ranks.h"

namespace decoding {

enum class Command : int32_t {
  none,
  open,
  read,
  join,
  stop,
  extend,
  pause,
  resume,
  save,
  restore,
  step,
  ended,
  end,
};

// Tables of stop strings are large, and requests share them: a table is sent once, while one of the
// requests with it lives.
class SentTables {
 public:
  static constexpr int64_t kNone = -1;

  // The number of a request's table, or kNone; and whether it is yet to be sent.
  std::pair<int64_t, bool> number(const Request& request);
  // Numbers whose tables no request needs, each once.
  std::vector<int64_t> unused();

 private:
  struct Sent {
    const int32_t* table;
    std::weak_ptr<const void> owner;
    int64_t number;
  };

  std::vector<Sent> sent_;
  int64_t next_ = 0;
};

class Leader : public Runner {
 public:
  // own: bound, of this rank; it and the ranks, which have begun a call, stay. vocab: of the model.
  Leader(Runner& own, Ranks& ranks, int vocab) : own_(own), ranks_(ranks), vocab_(vocab) {}

  Arena plan(const RunnerLimits& limits) const override { return own_.plan(limits); }
  void bind(const RunnerLimits&, void*, size_t) override;
  void begin() override { own_.begin(); }
  bool is_synchronous() const override { return own_.is_synchronous(); }
  int open(int request_class, const Request& request) override;
  void read(std::span<const ReadPart> parts) override;
  void join(std::span<const Admitted* const> joining) override;
  void stop(Slot slot) override;
  void extend(std::span<const Extension> extensions) override;
  bool pause(Slot slot) override;
  void resume(const Admitted& admitted, int steps) override;
  void save(std::span<const int32_t> pages, std::span<const int32_t> to) override;
  void restore(std::span<const int32_t> from, std::span<const int32_t> pages) override;
  bool step() override;
  void ended(std::vector<Ended>& to) override;
  void fetch(Slot slot, const Results& results) override { own_.fetch(slot, results); }
  int certain(Slot slot, const Results& results) override { return own_.certain(slot, results); }
  void check_ranks() override;
  void end() noexcept override;
  std::vector<TensorOverflow> overflow() const override { return own_.overflow(); }
  std::string first_overflow(const Admitted& admitted) const override {
    return own_.first_overflow(admitted);
  }

 private:
  template <typename Write, typename Work>
  auto lead(Command command, Write&& write, Work&& work);
  void begin(Command command);
  void put(const Request& request);
  void put_texts(const RunnerRequest& request);
  void put_table(const Request& request);

  Runner& own_;
  Ranks& ranks_;
  const int vocab_;
  MessageWriter message_;
  SentTables tables_;
  std::vector<int32_t> table_;  // on its way
  std::vector<Slot> slots_;     // likewise
  bool failed_ = false;
};

}  // namespace decoding
