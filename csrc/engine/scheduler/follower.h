// What the other ranks of a model that is split do: all that rank 0 asks of its runner (leader.h),
// in the same order, in a thread of its own.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/runner.h"
#include "engine/scheduler/leader.h"
#include "engine/scheduler/message.h"
#include "kernels/collective/ranks.h"

namespace decoding {

class Follower {
 public:
  // runner: bound. It and the ranks, which have begun a call, stay.
  Follower(Runner& runner, Ranks& ranks);
  ~Follower();

  // Waits up to so many seconds for the end of rank 0's engine. Returns whether it has come; throws
  // what has ended this one before.
  bool wait(double seconds);
  // Ends before, and with it rank 0's.
  void close();

 private:
  // A request that has joined.
  struct Joined {
    RunnerRequest request;
    Admitted admitted;
    std::shared_ptr<const int32_t> stop_table;
  };

  void run();
  bool follow(MessageReader message);
  void open(MessageReader& message);
  void read(MessageReader& message);
  void join(MessageReader& message);
  void extend(MessageReader& message);
  void resume(MessageReader& message);
  std::shared_ptr<const int32_t> stop_table(MessageReader& message);

  Runner& runner_;
  Ranks& ranks_;
  std::map<Slot, Joined> joined_;
  std::map<int64_t, std::shared_ptr<const int32_t>> stop_tables_;  // by their numbers
  std::atomic<bool> leaves_ = false;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::exception_ptr lost_;  // why it has ended before rank 0's engine
  const pid_t process_ = getpid();
  std::mutex ending_;  // who ends the thread
  std::thread thread_;
};

}  // namespace decoding
