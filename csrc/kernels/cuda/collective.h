// The GPUs of a model that is split over processes of one machine: memory of each that all of them
// write to, over NVLink or PCIe; where they cannot reach each other's, it is the host's.
//
// An exchange is one kernel on every rank (kernels/collective/cuda). Its number is counted on the
// device, so that a captured kernel finds its own each time that it is launched; each block has a
// count of its own, so none waits for others at the end. Two buffers take turns: who writes to the
// buffer of an exchange has been through the one before, to which nobody comes who still reads what
// was there. NCCL would do the same in more time (benchmarks/scale.py), is one more library, and
// promises no order of sums.
//
// Small parts travel as words: 4 bytes of numbers and the number of the exchange, which arrive
// together, so no fence and no flag is needed (NCCL's protocol LL). Large ones are written
// as they are; a flag of each block follows them, released and acquired by the whole system.
//
// A rank that waits in an exchange for one that has ended, or has left the call with an error, is
// stopped by a thread of its host, and leaves with whatever it has; what it has found is dropped.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/types.h"
#include "kernels/collective/ranks.h"
#include "kernels/cuda/mapped_file.h"
#include "kernels/cuda/resources.h"

namespace decoding::cuda {

constexpr int kMostRanks = 8;    // of one machine, whose GPUs are peers
constexpr int kMostBlocks = 64;  // of an exchange with flags
// Bytes of a part, up to which it travels as words: 128 KiB take 4 us between two H100s, but 256
// KiB 300 us, and twice that as numbers with flags 9 us.
constexpr int64_t kSmallPart = 1 << 17;

// The memory of all ranks, as kernels of one of them see it.
struct Peers {
  std::byte* memory[kMostRanks];
  uint32_t* counts;      // [kMostBlocks], the number of the last exchange, for each block
  const uint32_t* stop;  // in the host's memory: not 0 where exchanges must end
  uint32_t* given_up;    // in the host's memory: 1 where one has ended without a rank
  int64_t part_bytes;
  int rank, size;

  // What rank `from` has for rank `to`, of exchanges with an odd number or an even one: words,
  DECODING_EVERYWHERE std::byte* words(int to, int from, int buffer) const {
    return memory[to] + (buffer * size + from) * 2 * kSmallPart;
  }
  // or numbers as they are,
  DECODING_EVERYWHERE std::byte* numbers(int to, int from, int buffer) const {
    return words(to, 0, 2) + (buffer * size + from) * part_bytes;
  }
  // with two flags of each block [2, kMostBlocks].
  DECODING_EVERYWHERE uint32_t* flags(int to, int from) const {
    return reinterpret_cast<uint32_t*>(numbers(to, 0, 2)) + from * 2 * kMostBlocks;
  }
};

// Of one rank's memory.
constexpr int64_t shared_bytes(int size, int64_t part_bytes) {
  return size * (2 * (2 * kSmallPart + part_bytes) + 2 * kMostBlocks * int64_t{sizeof(uint32_t)});
}

class Collective {
 public:
  static constexpr int kRowAlignment = 8;  // numbers: of each row of a part, for accesses of 16
                                           // bytes

  // Makes the device the thread's current one, as torch.cuda.set_device() does: a rank works on no
  // other.
  // part_bytes: a multiple of 16, at least 2 * kSmallPart.
  Collective(std::shared_ptr<Ranks> ranks, int device, int64_t part_bytes);
  ~Collective();
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  // Makes memory that other ranks write to; returns with what they open it (CUDA IPC), for
  // open(handles of all ranks). Both throw Error, which says what is missing, where that cannot be.
  std::string share();
  void open(const std::vector<std::string>& handles);
  // In place of both: path is a file of host_bytes() zeros.
  void open_on_host(const std::string& path);
  int64_t host_bytes() const { return size() * rank_bytes(); }

  // Their hosts.
  const std::shared_ptr<Ranks>& ranks() const { return ranks_; }
  int rank() const { return ranks_->rank(); }
  int size() const { return ranks_->size(); }
  int64_t part_bytes() const { return peers_.part_bytes; }
  // This rank's part in the exchange that comes next.
  template <typename T>
  T* part() const {
    return reinterpret_cast<T*>(own_.data() + kCounts);
  }
  const Peers& peers() const { return peers_; }

  // Begins the work of a call, and ends it where it has not failed. After one that has failed, all
  // ranks begin together with a number that none of them has had.
  void enter();
  void leave();
  // The largest value of any rank.
  int64_t max_of(int64_t value) { return ranks_->max_of(value); }
  // Throws Error where an exchange was given up.
  void check();

 private:
  static constexpr size_t kCounts = kMostBlocks * sizeof(uint32_t);  // bytes before a part

  // Of one rank's memory: larger than what others may be given with the same handle.
  int64_t rank_bytes() const;
  void begin_watch();
  void align_numbers();
  void set_stop(bool stop);
  void watch();
  bool given_up() const { return host_[1].load(std::memory_order_acquire) != 0; }

  std::optional<UseDevice> last_use_;  // of the destructor; the first, so it goes last
  const std::shared_ptr<Ranks> ranks_;
  const int device_;
  DeviceMemory own_;  // counts, and this rank's part
  // what others write to
  std::unique_ptr<DeviceMemory> shared_;
  std::unique_ptr<MappedFile> on_host_;
  std::vector<void*> opened_;  // of other ranks
  PinnedMemory host_memory_;
  std::atomic<uint32_t>* const host_;  // stop, given_up
  Peers peers_{};

  std::mutex mutex_;  // of what follows
  std::condition_variable wakes_;
  bool in_call_ = false, stopped_ = false, closed_ = false;
  std::thread watch_;  // checks in a call whether a rank is lost
};

}  // namespace decoding::cuda
