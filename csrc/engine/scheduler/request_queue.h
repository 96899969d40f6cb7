// The requests that wait for rows and pages: the highest priority first, and first come, first
// served among equals.
//
// A request that does not fit may be passed by others that do, so that a large one does not leave
// rows idle; but only by kMostBypasses. Then those behind it wait until it fits: it cannot starve,
// unless by higher priorities.
//
// push, cancel and each expired request cost O(log n), and pop looks at kMostLooked requests at
// most, however many wait. One thread uses a queue.
//
// Its nodes come from the heap: a pool of libstdc++ 12's std::pmr ends the process where there is
// no memory for its list of chunks.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace decoding {

constexpr int kMostBypasses = 16;
constexpr int kMostLooked = 32;
constexpr double kNever = std::numeric_limits<double>::infinity();

// Times are seconds of one monotonic clock.
struct Waiting {
  int64_t id;
  int32_t priority = 0;  // higher first
  double deadline = kNever;
  double arrived = 0;
  int64_t pages = 0;  // it needs
  int32_t rows = 0;   // it needs
};

class RequestQueue {
 public:
  // limit: requests that may wait.
  explicit RequestQueue(int limit);
  RequestQueue(const RequestQueue&) = delete;
  RequestQueue& operator=(const RequestQueue&) = delete;

  int size() const { return static_cast<int>(requests_.size()); }

  // Throws Error where the queue is full. Requests that arrived at the same time keep the order of
  // these calls.
  void push(const Waiting& request);

  // Takes the first request for which fits(request), if one may be taken.
  template <typename Fits>
  std::optional<Waiting> pop(Fits&& fits);

  // false: the request does not wait, or no longer.
  bool cancel(int64_t id);

  // Removes the requests whose deadline is `now` or earlier and appends their ids, the earliest
  // deadline first.
  void expire(double now, std::vector<int64_t>& to);

 private:
  struct Place {
    int32_t priority;
    double arrived;
    uint64_t number;  // of its push

    bool operator<(const Place& other) const;  // is served before it
  };
  struct Entry {
    Waiting request;
    int bypasses = 0;  // of it, by others
  };
  using Requests = std::map<Place, Entry>;

  void erase(Requests::iterator entry);

  const int limit_;
  uint64_t pushes_ = 0;
  Requests requests_;  // in the order of pop
  std::unordered_map<int64_t, Requests::iterator> by_id_;
  std::set<std::pair<double, int64_t>> deadlines_;  // and ids, where there is one
};

template <typename Fits>
std::optional<Waiting> RequestQueue::pop(Fits&& fits) {
  int looked = 0;
  for (auto entry = requests_.begin(); entry != requests_.end() && looked < kMostLooked; ++entry) {
    if (fits(std::as_const(entry->second.request))) {
      for (auto passed = requests_.begin(); passed != entry; ++passed) ++passed->second.bypasses;
      const Waiting taken = entry->second.request;
      erase(entry);
      return taken;
    }
    if (entry->second.bypasses == kMostBypasses) break;
    ++looked;
  }
  return std::nullopt;
}

}  // namespace decoding
