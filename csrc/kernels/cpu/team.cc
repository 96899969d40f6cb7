#include "kernels/cpu/team.h"

#include <pthread.h>
#include <sched.h>

#include "core/check.h"
#include "core/thread.h"
#include "kernels/cpu/pause.h"

namespace decoding::cpu {
namespace {

// A pause takes some 50 ns, so this is about 100 us: longer than any stage's imbalance, shorter
// than a scheduler's slice.
constexpr int kSpins = 2000;
// Now and then a waiting thread offers its core to others: on a busy machine that may be the very
// thread that it waits for (a barrier then took 10 us instead of 200).
constexpr int kSpinsPerYield = 64;

// Returns once `word` is no longer `old`.
template <typename T>
void wait_while(const std::atomic<T>& word, T old) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (word.load(std::memory_order_acquire) != old) return;
    if (spin % kSpinsPerYield == kSpinsPerYield - 1) {
      std::this_thread::yield();
    } else {
      pause();
    }
  }
  word.wait(old, std::memory_order_acquire);
}

// The cores that this process may use: the affinity mask at the time.
int cores() {
#if defined(__linux__)
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) return CPU_COUNT(&mask);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

// The teams that run on the cores of the process, in the order of arrival. All of it is atomics: a
// child of fork(), where none of the threads that held cores lives on, only sets them back.
class Queue {
 public:
  // Returns once `threads` more cores are free, or all are.
  void enter(int threads) {
    const unsigned ticket = tickets_.fetch_add(1);
    for (unsigned now; (now = serving_.load()) != ticket;) serving_.wait(now);
    for (int busy; (busy = busy_.load()) > 0 && busy + threads > cores();) busy_.wait(busy);
    busy_.fetch_add(threads);
    serving_.fetch_add(1);
    serving_.notify_all();
  }

  void leave(int threads) {
    busy_.fetch_sub(threads);
    busy_.notify_all();
  }

  // In a child of fork().
  void forget() {
    tickets_ = serving_ = 0, busy_ = 0;
    ++process_;
  }

  // Differs between a process and its children by fork(); getpid() were a system call.
  unsigned process() const { return process_; }

 private:
  std::atomic<unsigned> tickets_{0}, serving_{0};
  std::atomic<int> busy_{0};  // threads that run
  std::atomic<unsigned> process_{0};
};

// Ends a team's threads, which wait for a job.
void end(std::vector<std::thread>& threads, std::atomic<bool>& stop, std::atomic<unsigned>& job) {
  stop = true;
  job.fetch_add(1, std::memory_order_release);
  job.notify_all();
  for (std::thread& thread : threads) thread.join();
}

Queue& queue() {
  static Queue shared;
  static const int registered = pthread_atfork(nullptr, nullptr, [] { shared.forget(); });
  static_cast<void>(registered);
  return shared;
}

}  // namespace

void Barrier::arrive_and_wait() {
  const unsigned round = round_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    round_.notify_all();
  } else {
    wait_while(round_, round);
  }
}

Team::Team(int size, bool takes_turns)
    : size_(size), process_(queue().process()), barrier_(size), takes_turns_(takes_turns) {
  CHECK(size > 0, "a team needs at least one thread, got ", size);
  threads_.reserve(size - 1);
  try {
    for (int rank = 1; rank < size; ++rank) {
      threads_.push_back(start_thread([this, rank] { serve(rank); }));
    }
  } catch (...) {
    end(threads_, stop_, job_);
    throw;
  }
}

Team::~Team() {
  if (queue().process() != process_) {  // a forked child has no threads to join
    for (std::thread& thread : threads_) thread.detach();
    return;
  }
  end(threads_, stop_, job_);
}

void Team::run(const std::function<void(int)>& work) {
  CHECK(queue().process() == process_,
        "this model was loaded before the process forked, so its threads are not here: load it in "
        "the child, or start processes with the 'spawn' method");
  if (takes_turns_) queue().enter(size_);
  work_ = &work;
  running_.store(size_ - 1, std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  work(0);
  for (int left = running_.load(std::memory_order_acquire); left != 0;
       left = running_.load(std::memory_order_acquire)) {
    wait_while(running_, left);
  }
  if (takes_turns_) queue().leave(size_);
}

void Team::serve(int rank) {
  for (unsigned seen = 0;; ++seen) {
    wait_while(job_, seen);
    if (stop_) return;
    (*work_)(rank);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
  }
}

}  // namespace decoding::cpu
