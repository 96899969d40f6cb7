// Drives the ranks of a model that is split over processes under ThreadSanitizer, which sees one
// process alone: ranks are threads here. It knows memory by its address, so that all of them have
// one mapping of the file, and locks that threads can hold against each other.
//
// Parts are plain memory: a barrier that orders less than it promises is a data race. Exits with 1
// where a promise is broken.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace decoding {
namespace {

constexpr int kMost = 4;  // ranks

void* shared_memory = nullptr;
std::array<std::atomic<bool>, kMost> locked;  // by rank

void* map_once(void*, size_t bytes, int protection, int flags, int file, off_t) {
  if (shared_memory == nullptr) shared_memory = mmap(nullptr, bytes, protection, flags, file, 0);
  return shared_memory;
}

int unmap_never(void*, size_t) { return 0; }

int lock_rank(int, int command, struct flock* lock) {
  std::atomic<bool>& held = locked[lock->l_start];
  if (command == F_SETLK) return held.exchange(true) ? -1 : 0;
  lock->l_type = held ? F_WRLCK : F_UNLCK;
  return 0;
}

}  // namespace
}  // namespace decoding

#define mmap map_once
#define munmap unmap_never
#define fcntl lock_rank
#include "kernels/cpu/collective.cc"
#undef mmap
#undef munmap
#undef fcntl

namespace decoding::cpu {
namespace {

constexpr int64_t kPartBytes = 4096;
constexpr int kCalls = 40, kExchanges = 20;
constexpr std::chrono::milliseconds kLong{30};  // until ranks that wait look for who has failed

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "ranks: %s\n", what);
  std::exit(1);
}

// Runs life(collective) for each rank in a thread of its own. A rank whose life is over has ended.
void live(int size, const std::function<void(Collective&)>& life) {
  const auto bytes = static_cast<size_t>(collective_bytes(size, kPartBytes));
  std::string path = std::filesystem::temp_directory_path() / "decoding-ranks-XXXXXX";
  const int file = mkstemp(path.data());
  expect(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0, "there is no file");
  std::vector<std::unique_ptr<Collective>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<Collective>(path, rank, size, kPartBytes));
  }
  close(file);
  unlink(path.c_str());  // now that all have it: nothing is left of a program that ends early
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) {
    threads.emplace_back([&] {
      life(*rank);
      locked[rank->rank()] = false;
    });
  }
  for (std::thread& thread : threads) thread.join();
  ranks.clear();
  munmap(std::exchange(shared_memory, nullptr), bytes);
}

void begin(Collective& rank, uint64_t digest) {
  rank.begin(digest);
  expect(rank.wait(60), "a rank did not begin the call");
}

// Every rank fills its part, and reads all parts behind the barrier.
void exchange(Collective& rank, int64_t number) {
  constexpr int kNumbers = kPartBytes / sizeof(int64_t);
  std::fill_n(rank.part<int64_t>(), kNumbers, number + rank.rank());
  rank.meet();
  for (int other = 0; other < rank.size() && !rank.is_broken(); ++other) {
    const auto* part = rank.part<int64_t>(other);
    for (int i = 0; i < kNumbers; ++i) expect(part[i] == number + other, "a part is another's");
  }
}

// Rank 0 tells the others so many bytes: none, as many as a part has room for, or more.
void tell(Collective& rank, size_t count) {
  const std::vector<std::byte> sent(count, std::byte{7});
  std::vector<std::byte> bytes = rank.rank() == 0 ? sent : std::vector<std::byte>(3);
  rank.broadcast(bytes);
  expect(bytes == sent, "rank 0 is misunderstood");
}

void exchange_parts(Collective& rank) {
  for (int call = 0; call < kCalls; ++call) {
    begin(rank, call);
    rank.check_digests();
    for (int i = 0; i < kExchanges; ++i) exchange(rank, call * kExchanges + i);
    rank.check();
    expect(rank.max_of(rank.rank()) == rank.size() - 1, "the largest value is another");
    for (const size_t count : {0, 1, 4088, 4089, 20000}) tell(rank, count);
  }
}

// In each call another rank fails after some exchanges, and says why; the call after it is whole.
// Another thread of each rank asks meanwhile whether one has.
void fail_in_turns(Collective& rank) {
  std::atomic<bool> over = false;
  std::thread watch([&] {
    while (!over) rank.is_torn(), std::this_thread::yield();
  });
  for (int call = 0; call < kCalls; ++call) {
    begin(rank, call);
    const bool is_whole = call % 2 == 1, fails = !is_whole && call / 2 % rank.size() == rank.rank();
    for (int i = 0; i < kExchanges && !rank.is_broken(); ++i) {
      if (fails && i == call % kExchanges) break;
      exchange(rank, i);
    }
    if (fails) {
      rank.fail("it is the turn of call " + std::to_string(call));
      if (call % 8 == 0) std::this_thread::sleep_for(kLong);  // else the next call tells it, too
      continue;
    }
    std::string said;
    try {
      call % 4 == 0 ? rank.check_torn() : rank.check();
    } catch (const Error& error) {
      said = error.what();
    }
    const bool knows = said.find("turn of call " + std::to_string(call)) != std::string::npos;
    expect(is_whole ? said.empty() : knows, "a rank does not know why another has failed");
  }
  over = true;
  watch.join();
}

// The last rank ends in the middle of a call, without a word.
void end_alone(Collective& rank) {
  begin(rank, 0);
  exchange(rank, 0);
  if (rank.rank() == rank.size() - 1) return;
  exchange(rank, 1);
  bool has_thrown = false;
  try {
    rank.check();
  } catch (const Error&) {
    has_thrown = true;
  }
  expect(has_thrown && rank.is_torn(), "nobody knows that a rank has ended");
}

}  // namespace
}  // namespace decoding::cpu

int main() {
  using namespace decoding::cpu;
  for (int size = 2; size <= decoding::kMost; ++size) {
    live(size, exchange_parts);
    live(size, fail_in_turns);
    live(size, end_alone);
  }
  std::puts("ranks: done");
}
