#include "engine/scheduler/request_queue.h"

#include <cmath>
#include <tuple>

#include "core/check.h"

namespace decoding {

bool RequestQueue::Place::operator<(const Place& other) const {
  return std::tie(other.priority, arrived, number) <
         std::tie(priority, other.arrived, other.number);
}

RequestQueue::RequestQueue(int limit) : limit_(limit) {
  CHECK(limit > 0, "a queue must have room for 1 request or more, got ", limit);
  by_id_.reserve(limit);
}

void RequestQueue::push(const Waiting& request) {
  CHECK(size() < limit_, "the queue is full: ", limit_,
        " requests wait, as many as may; submit this one later, or raise the limit");
  CHECK(!std::isnan(request.arrived) && !std::isnan(request.deadline), "request ", request.id,
        " arrived at ", request.arrived, " with the deadline ", request.deadline,
        ": both must be numbers");
  CHECK(!by_id_.contains(request.id), "request ", request.id, " waits already: ids must differ");
  const Place place{request.priority, request.arrived, pushes_++};
  by_id_.emplace(request.id, requests_.emplace(place, Entry{request}).first);
  if (request.deadline < kNever) deadlines_.emplace(request.deadline, request.id);
}

void RequestQueue::erase(Requests::iterator entry) {
  const Waiting& request = entry->second.request;
  deadlines_.erase({request.deadline, request.id});
  by_id_.erase(request.id);
  requests_.erase(entry);
}

bool RequestQueue::cancel(int64_t id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  erase(found->second);
  return true;
}

void RequestQueue::expire(double now, std::vector<int64_t>& to) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const int64_t id = deadlines_.begin()->second;
    to.push_back(id);
    cancel(id);
  }
}

}  // namespace decoding
