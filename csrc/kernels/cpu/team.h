// A team of threads that stays together: it runs one function on every thread (SPMD) and meets at
// barriers in between. Waiting spins for a while, then sleeps, so that idle models cost nothing.
//
// All teams of the process share its cores: a team runs once there is a core for each of its
// threads, else it waits its turn. Two models at once are as fast as one after the other; threads
// that fought for a core would wait for each other at every barrier. A team whose work waits for
// other processes takes no turns: in one of these it may be another team's, which waits for this
// process in turn.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace decoding::cpu {

// All `size` threads arrive before any goes on.
class Barrier {
 public:
  explicit Barrier(int size) : size_(size) {}
  void arrive_and_wait();

 private:
  const int size_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> round_{0};
};

class Team {
 public:
  // The caller of run() is one of them: size - 1 threads are started.
  explicit Team(int size, bool takes_turns = true);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }
  Barrier& barrier() { return barrier_; }

  // Calls work(rank) on every thread, rank 0 on the caller's; returns when all have returned. It
  // waits for its turn first, so `work` must not run a team.
  // `work` must not throw. One caller at a time.
  void run(const std::function<void(int rank)>& work);

 private:
  void serve(int rank);

  const int size_;
  const unsigned process_;  // that started the threads: a fork does not inherit them
  Barrier barrier_;
  const std::function<void(int)>* work_ = nullptr;
  alignas(64) std::atomic<unsigned> job_{0};
  alignas(64) std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
  const bool takes_turns_;
};

}  // namespace decoding::cpu
