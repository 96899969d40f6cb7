// The ranks of a model that is split over processes of one machine: memory that they share, and
// where they wait for each other.
//
// They map one file: a slot of each rank, then their parts. An exchange is one shot: every rank
// writes its part, all wait at a barrier, and each reads the parts of all. There are two buffers of
// parts, which take turns: who writes the part of an exchange has passed the barrier of the one
// before, which nobody reaches who still reads the parts of the one before that.
//
// A rank counts its calls and the exchanges in each. Its clock is both numbers, and it only grows:
// a barrier is passed when no clock is behind, and where calls end early, the next begins as ever.
//
// A rank that leaves a call with an error says so in its slot. One that dies, however it does,
// loses its lock on a byte of the file. Either ends the call of all others.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/collective/ranks.h"

namespace decoding::cpu {

class Collective : public Ranks {
 public:
  static constexpr int kRowAlignment = 1;  // numbers: of each row of a part

  // path: a file of collective_bytes() zeros, which all ranks map before one of them calls begin().
  // Throws Error where it cannot be mapped.
  Collective(const std::string& path, int rank, int size, int64_t part_bytes);
  ~Collective() override;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int64_t part_bytes() const { return part_bytes_; }

  // Begins a call. digest: of what is asked, which must be the same on all ranks.
  void begin(uint64_t digest);
  // Waits for so many seconds until all ranks have begun it; true once they have, or never will.
  bool wait(double seconds);
  // Throws Error where a rank is lost, or asks for something else.
  void check() const { check(lost_); }
  void check_digests() const;
  void fail(const std::string& why) override;
  int64_t max_of(int64_t value) override;
  void broadcast(std::vector<std::byte>& bytes) override;
  bool is_torn() const override { return torn() >= 0; }
  void check_torn() const override { check(torn()); }

  // This rank's part in the exchange that comes next.
  template <typename T>
  T* part() {
    return static_cast<T*>(at(clock_ + 1, rank_));
  }
  // Comes to the exchange. One thread of a rank does, when its part is written. At once where a
  // rank is lost, so that the step comes to its end, whatever it finds.
  void meet();
  bool is_broken() const { return lost_ >= 0; }
  // Any rank's part in the exchange that was last.
  template <typename T>
  const T* part(int rank) const {
    return static_cast<const T*>(at(clock_, rank));
  }

 private:
  struct alignas(128) Slot {
    std::atomic<uint64_t> clock;   // the number of the call, and in the lower half of the exchange
    std::atomic<uint64_t> failed;  // the number of the last call that it has left with an error
    std::atomic<uint64_t> digests[2];  // of a call with an even number, and an odd one
    int32_t process;
    char message[480];  // why it failed
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "else processes cannot share it");
  friend int64_t collective_bytes(int size, int64_t part_bytes);

  Slot& slot(int rank) const { return static_cast<Slot*>(memory_)[rank]; }
  void* at(uint64_t clock, int rank) const;
  uint64_t call() const { return clock_ >> 32; }
  bool is_lost(int rank) const;
  bool wait_for(int rank, double seconds);
  bool is_alive(int rank) const;
  // A rank that has left this call with an error, or has ended; -1: none.
  int torn() const;
  // Throws Error that says how this rank was lost; -1: none was.
  void check(int lost) const;

  const int rank_, size_;
  const int64_t part_bytes_;
  int file_ = -1;
  void* memory_ = nullptr;
  uint64_t clock_ = 0;
  int lost_ = -1;  // the rank without which this call cannot go on
};

// Of the file. part_bytes: a multiple of 4096.
int64_t collective_bytes(int size, int64_t part_bytes);

}  // namespace decoding::cpu
