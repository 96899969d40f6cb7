#include "kernels/cpu/collective.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "core/check.h"
#include "kernels/cpu/pause.h"

namespace decoding::cpu {
namespace {

using Clock = std::chrono::steady_clock;

// Ranks of a machine may have to share its cores, so a waiting one soon offers its own to others;
// and it sleeps once the others are not in a step at all: a hundredth of the time that it waits.
constexpr int kSpins = 200;
constexpr std::chrono::milliseconds kAwake{2};
constexpr std::chrono::microseconds kNap{100}, kLongestNap{2000};
constexpr std::chrono::milliseconds kPoll{10};  // between two checks whether a rank still lives

constexpr int64_t kPage = 4096;
constexpr double kForever = std::numeric_limits<double>::infinity();

// A lock on a rank's byte of the file. The system gives it back however a process ends; a child of
// fork() does not inherit it.
struct flock lock_of(int rank) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

int64_t collective_bytes(int size, int64_t part_bytes) {
  const int64_t slots = (size * int64_t{sizeof(Collective::Slot)} + kPage - 1) / kPage * kPage;
  return slots + 2 * size * part_bytes;
}

Collective::Collective(const std::string& path, int rank, int size, int64_t part_bytes)
    : rank_(rank), size_(size), part_bytes_(part_bytes) {
  CHECK(size > 1 && rank >= 0 && rank < size, "rank must be 0 to ", size - 1, ", got ", rank);
  CHECK(part_bytes > 0 && part_bytes % kPage == 0, "part_bytes must be a multiple of ", kPage);
  const auto bytes = static_cast<size_t>(collective_bytes(size, part_bytes));
  file_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
  CHECK(file_ >= 0, "cannot open ", path, ": ", std::strerror(errno));
  struct flock lock = lock_of(rank);
  const bool locked = fcntl(file_, F_SETLK, &lock) == 0;
  if (locked) memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (!locked || memory_ == MAP_FAILED) {
    const int error = errno;
    close(file_);
    throw Error("cannot share " + path + " with other ranks: " + std::strerror(error));
  }
  slot(rank).process = getpid();
}

Collective::~Collective() {
  munmap(memory_, static_cast<size_t>(collective_bytes(size_, part_bytes_)));
  close(file_);
}

void* Collective::at(uint64_t clock, int rank) const {
  const int64_t parts = collective_bytes(size_, part_bytes_) - 2 * size_ * part_bytes_;
  const auto buffer = static_cast<int64_t>(clock & 1);
  return static_cast<char*>(memory_) + parts + (buffer * size_ + rank) * part_bytes_;
}

void Collective::begin(uint64_t digest) {
  clock_ = (call() + 1) << 32;
  lost_ = -1;
  slot(rank_).digests[call() & 1].store(digest, std::memory_order_relaxed);
  slot(rank_).clock.store(clock_, std::memory_order_release);
}

bool Collective::wait(double seconds) {
  for (int rank = 0; rank < size_; ++rank) {
    if (is_broken()) return true;
    if (!wait_for(rank, seconds)) return false;
  }
  return true;
}

void Collective::meet() {
  if (is_broken()) return;
  slot(rank_).clock.store(++clock_, std::memory_order_release);
  for (int rank = 0; rank < size_ && !is_broken(); ++rank) wait_for(rank, kForever);
}

bool Collective::wait_for(int rank, double seconds) {
  const Slot& other = slot(rank);
  const auto has_come = [&] { return other.clock.load(std::memory_order_acquire) >= clock_; };
  for (int spin = 0; spin < kSpins && !has_come(); ++spin) pause();
  const auto begin = Clock::now();
  for (auto now = begin, looked = begin; !has_come(); now = Clock::now()) {
    const auto waited = now - begin;
    const auto nap = std::clamp<Clock::duration>(waited / 100, kNap, kLongestNap);
    waited < kAwake ? std::this_thread::yield() : std::this_thread::sleep_for(nap);
    if (now - looked < kPoll) continue;
    looked = now;
    if (is_lost(rank)) lost_ = rank;
    if (is_broken()) return true;
    if (std::chrono::duration<double>(now - begin).count() > seconds) return false;
  }
  // It may already have begun the next call, because an error has ended this one.
  const bool has_left = other.clock.load(std::memory_order_acquire) >> 32 > call();
  if (has_left && is_lost(rank)) lost_ = rank;
  return true;
}

// It may have come just before it ended.
bool Collective::is_lost(int rank) const {
  if (slot(rank).failed.load(std::memory_order_acquire) == call()) return true;
  return !is_alive(rank) && slot(rank).clock.load(std::memory_order_acquire) < clock_;
}

bool Collective::is_alive(int rank) const {
  if (rank == rank_) return true;
  struct flock lock = lock_of(rank);
  return fcntl(file_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void Collective::check(int lost) const {
  if (lost < 0) return;
  const Slot& other = slot(lost);
  const bool failed = other.failed.load(std::memory_order_acquire) == call();
  throw Error("rank " + std::to_string(lost) + " of " + std::to_string(size_) + " (process " +
              std::to_string(other.process) + ")" +
              (failed ? " failed: " + std::string(other.message)
                      : " has ended, and this model is split over all of them: start all again"));
}

void Collective::check_digests() const {
  const uint64_t own = slot(rank_).digests[call() & 1];
  for (int rank = 0; rank < size_; ++rank) {
    if (slot(rank).digests[call() & 1].load(std::memory_order_relaxed) == own) continue;
    throw Error("rank " + std::to_string(rank) + " asks for something else than rank " +
                std::to_string(rank_) +
                ": all ranks of a model that is split must make the same calls in the same order, "
                "with the same texts, options and seed");
  }
}

void Collective::fail(const std::string& why) {
  Slot& own = slot(rank_);
  std::strncpy(own.message, why.c_str(), sizeof own.message - 1);
  own.failed.store(call(), std::memory_order_release);
}

int64_t Collective::max_of(int64_t value) {
  *part<int64_t>() = value;
  meet();
  check();
  for (int rank = 0; rank < size_; ++rank) value = std::max(value, *part<int64_t>(rank));
  return value;
}

// A part has the number of bytes that are left, and as many of these as there is room for.
void Collective::broadcast(std::vector<std::byte>& bytes) {
  const size_t room = part_bytes_ - sizeof(size_t);
  size_t done = 0, left = bytes.size();
  do {
    if (rank_ == 0) {
      std::byte* to = part<std::byte>();
      std::memcpy(to, &left, sizeof left);
      std::copy_n(bytes.data() + done, std::min(left, room), to + sizeof left);
    }
    meet();
    check();
    const std::byte* from = part<std::byte>(0);
    std::memcpy(&left, from, sizeof left);
    const size_t count = std::min(left, room);
    if (rank_ > 0) {
      bytes.resize(done + left);
      std::copy_n(from + sizeof left, count, bytes.data() + done);
    }
    done += count;
    left -= count;
  } while (left > 0);
}

int Collective::torn() const {
  const uint64_t call = slot(rank_).clock.load(std::memory_order_acquire) >> 32;
  if (call == 0) return -1;  // there has been none
  for (int rank = 0; rank < size_; ++rank) {
    if (slot(rank).failed.load(std::memory_order_acquire) == call || !is_alive(rank)) return rank;
  }
  return -1;
}

}  // namespace decoding::cpu
