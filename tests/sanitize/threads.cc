// Drives the team of threads and the queue for cores under ThreadSanitizer, without Python.
//
// All that threads share here is plain memory: a barrier, a start or an end that orders less than
// it promises is a data race, which the sanitizer reports. Exits with 1 where a promise is broken.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "core/check.h"
#include "kernels/cpu/team.h"

namespace decoding::cpu {
namespace {

constexpr int kRounds = 200;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "threads: %s\n", what);
  std::exit(1);
}

// Each thread writes its own number and reads those of all others behind a barrier, round by round.
void meet_at_barriers(Team& team) {
  std::vector<int> numbers(team.size());
  std::vector<int> sums(team.size());
  team.run([&](int rank) {
    for (int round = 0; round < kRounds; ++round) {
      numbers[rank] = round + rank;
      team.barrier().arrive_and_wait();
      int sum = 0;
      for (int number : numbers) sum += number;
      sums[rank] += sum;
      team.barrier().arrive_and_wait();  // before anyone writes again
    }
  });
  for (int sum : sums) expect(sum == sums[0], "threads met different numbers at a barrier");
}

// What the caller wrote is there for all threads, and what they wrote for the caller, also where
// they sleep in between.
void hand_over(Team& team, std::chrono::microseconds idle) {
  int given = 0;
  std::vector<int> taken(team.size());
  for (int round = 1; round <= 30; ++round) {
    given = round;
    team.run([&](int rank) { taken[rank] = given; });
    for (int number : taken) expect(number == round, "a thread missed what its caller wrote");
    std::this_thread::sleep_for(idle);
  }
}

// Callers of teams of their own: a team that needs all cores runs alone.
void queue_for_cores(int callers) {
  const int size = static_cast<int>(std::thread::hardware_concurrency());
  int running = 0, turns = 0;  // of the team whose turn it is
  std::vector<std::thread> threads;
  for (int caller = 0; caller < callers; ++caller) {
    threads.emplace_back([&] {
      Team team(size);
      for (int round = 0; round < kRounds; ++round) {
        team.run([&](int rank) {
          if (rank == 0) expect(++running == 1, "two teams had all the cores at once");
          team.barrier().arrive_and_wait();
          if (rank == team.size() - 1) ++turns, --running;
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect(turns == callers * kRounds, "a turn was lost");
}

// Teams of several sizes, made, run and ended by callers side by side.
void come_and_go(int callers) {
  std::vector<std::thread> threads;
  for (int caller = 0; caller < callers; ++caller) {
    threads.emplace_back([caller] {
      for (int round = 0; round < 20; ++round) {
        Team team(1 + (caller + round) % 4);
        if (round % 3 != 0) meet_at_barriers(team);  // else it ends without having run
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A child of fork() cannot run its parent's team, but teams of its own, even where the parent's
// queue was full.
void fork_a_child(Team& team) {
  pid_t child = 0;
  team.run([&](int rank) {
    if (rank == 0) child = fork();
    if (rank != 0 || child != 0) return;
    bool refused = false;
    try {
      team.run([](int) {});
    } catch (const Error&) {
      refused = true;
    }
    Team own(2);
    meet_at_barriers(own);
    _exit(refused ? 0 : 1);
  });
  int status = 0;
  expect(waitpid(child, &status, 0) == child && status == 0, "a forked child went wrong");
}

}  // namespace
}  // namespace decoding::cpu

int main() {
  using namespace decoding::cpu;
  using std::chrono::microseconds;
  for (int size = 1; size <= 4; ++size) {
    Team team(size);
    meet_at_barriers(team);
    hand_over(team, microseconds(0));
    hand_over(team, microseconds(2000));
    fork_a_child(team);
  }
  queue_for_cores(4);
  come_and_go(4);
  std::puts("threads: done");
}
