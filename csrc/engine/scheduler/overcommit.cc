#include "engine/scheduler/overcommit.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "kernels/attention/pages.h"

namespace decoding {
namespace {

// Steps for which a request gets pages at once.
constexpr int kSteps = kPageSize;

int rows_of(const RunnerRequest& request) { return request.request.rows_per_sentence; }

}  // namespace

Overcommit::Overcommit(Runner& runner, PageAllocator& pages, bool has_encoder, int64_t page_bytes)
    : runner_(runner), pages_(pages), has_encoder_(has_encoder), page_bytes_(page_bytes) {}

bool Overcommit::admits(const RunnerRequest& request, int shared_pages) const {
  const int shared_used = pages_.used() - own_used_;
  const int most_own = std::max(most_own_, all_pages(request));
  return fits(shared_pages + next_pages(request, 0) + promised_) &&
         shared_used + shared_pages + most_own <= pages_.total();
}

void Overcommit::admit(int64_t id, Admitted& admitted) {
  members_.push_back({.id = id, .admitted = &admitted});
  most_own_ = std::max(most_own_, all_pages(*admitted.request));
  promised_ += next_pages(*admitted.request, 0);
}

bool Overcommit::may_join(const Admitted& admitted) const {
  return fits(next_pages(*admitted.request, 0));
}

void Overcommit::join(int64_t id) {
  Member& joining = member(id);
  promised_ -= next_pages(*joining.admitted->request, 0);
  start(joining, 0);
  allocate(joining);
}

void Overcommit::resume() {
  for (Member& member : members_) {
    if (stats_.swapped == 0) return;
    if (member.state != State::out) continue;
    if (next_pages(*member.admitted->request, member.steps) > room()) return;
    swap_in(member);
  }
}

bool Overcommit::step() {
  extensions_.clear();
  for (Member& member : members_) {
    if (member.state == State::running && member.due <= steps_) extend(member);
  }
  if (!extensions_.empty()) runner_.extend(extensions_);
  const bool stepped = runner_.step();
  steps_ += stepped;
  return stepped;
}

bool Overcommit::leave(int64_t id) {
  Member& leaving = member(id);
  return leaving.state == State::out || pause(leaving);
}

void Overcommit::end(int64_t id) {
  Member& ending = member(id);
  if (ending.state == State::admitted) promised_ -= next_pages(*ending.admitted->request, 0);
  if (ending.state == State::running || ending.state == State::ended) {
    rows_running_ -= rows_of(*ending.admitted->request);
  }
  if (ending.state == State::out) --stats_.swapped;
  own_used_ -= static_cast<int>(ending.admitted->own_pages.size());
  free_saved_.insert(free_saved_.end(), ending.saved.begin(), ending.saved.end());
  members_.erase(members_.begin() + (&ending - members_.data()));
  most_own_ = 0;
  for (const Member& other : members_) {
    most_own_ = std::max(most_own_, all_pages(*other.admitted->request));
  }
}

Overcommit::Member& Overcommit::member(int64_t id) {
  const auto found = std::ranges::find(members_, id, &Member::id);
  CHECK(found != members_.end(), "request ", id, " has not been admitted");
  return *found;
}

int Overcommit::steps_of(const Member& member) const {
  return static_cast<int>(steps_ - member.began);
}

// Of its own, that its steps so far have written to.
int Overcommit::written_pages(const Member& member) const {
  const RunnerRequest& request = *member.admitted->request;
  const int positions = request.own_before(has_encoder_) + steps_of(member);
  return static_cast<int>(pages_of(int64_t{rows_of(request)} * positions));
}

// Its own, with those of its next steps after so many.
int Overcommit::next_pages(const RunnerRequest& request, int steps) const {
  const int left = std::max(0, request.request.steps() - steps - kSteps);
  const int positions = request.own(has_encoder_) - left;
  return static_cast<int>(pages_of(int64_t{rows_of(request)} * positions));
}

int Overcommit::all_pages(const RunnerRequest& request) const {
  return next_pages(request, request.request.steps());
}

// Nobody overtakes those that are out.
bool Overcommit::fits(int pages) const { return stats_.swapped == 0 && pages <= room(); }

// Pages for who joins or comes back. Those that run will ask for some too: a row for one in
// kPageSize steps, so half of them soon, and nobody should be swapped out for them at once.
int Overcommit::room() const { return pages_.available() - rows_running_ / 2; }

// Gives it the own pages of its next steps, which must be free. Returns how many it had.
int Overcommit::allocate(Member& member) {
  const RunnerRequest& request = *member.admitted->request;
  std::vector<int32_t>& own = member.admitted->own_pages;
  const int had = static_cast<int>(own.size());
  const int steps = steps_of(member), more = next_pages(request, steps) - had;
  CHECK(pages_.allocate(more, own), "request ", member.id, " lacks pages");
  own_used_ += more;
  member.due = steps + kSteps < request.request.steps() ? steps_ + kSteps
                                                        : std::numeric_limits<int64_t>::max();
  return had;
}

void Overcommit::start(Member& member, int steps) {
  member.state = State::running;
  member.began = steps_ - steps;
  rows_running_ += rows_of(*member.admitted->request);
}

// Gives it the own pages of its next steps. Others are swapped out for them, or it.
void Overcommit::extend(Member& member) {
  const RunnerRequest& request = *member.admitted->request;
  const int more =
      next_pages(request, steps_of(member)) - static_cast<int>(member.admitted->own_pages.size());
  while (member.state == State::running && pages_.available() < more) swap_out(victim(member));
  if (member.state != State::running) return;
  extensions_.push_back({member.admitted, allocate(member)});
}

// Who is swapped out for a member; itself where the pages of all others will be free soon.
Overcommit::Member& Overcommit::victim(Member& member) {
  Member *oldest = nullptr, *found = nullptr;
  for (Member& other : members_) {
    if (other.state != State::running) continue;
    if (oldest == nullptr) {
      oldest = &other;
    } else if (found == nullptr || steps_of(other) <= steps_of(*found)) {
      found = &other;
    }
  }
  return found == nullptr ? member : *found;
}

bool Overcommit::pause(Member& member) {
  if (runner_.pause(member.admitted->slot)) return true;
  member.state = State::ended;
  return false;
}

void Overcommit::swap_out(Member& member) {
  if (!pause(member)) return;
  std::vector<int32_t>& own = member.admitted->own_pages;
  std::erase_if(extensions_, [&](const Extension& e) { return e.admitted == member.admitted; });
  const int written = written_pages(member);
  for (int i = 0; i < written; ++i) {
    if (free_saved_.empty()) free_saved_.push_back(saved_pages_++);
    member.saved.push_back(free_saved_.back());
    free_saved_.pop_back();
  }
  runner_.save(std::span(own).first(written), member.saved);
  pages_.release(own);
  own_used_ -= static_cast<int>(own.size());
  own.clear();
  member.steps = steps_of(member);
  member.state = State::out;
  rows_running_ -= rows_of(*member.admitted->request);
  ++stats_.swapped;
  ++stats_.swaps;
  stats_.bytes += written * page_bytes_;
}

void Overcommit::swap_in(Member& member) {
  start(member, member.steps);
  allocate(member);
  const std::vector<int32_t>& own = member.admitted->own_pages;
  runner_.restore(member.saved, std::span(own).first(member.saved.size()));
  runner_.resume(*member.admitted, member.steps);
  free_saved_.insert(free_saved_.end(), member.saved.begin(), member.saved.end());
  member.saved.clear();
  --stats_.swapped;
}

}  // namespace decoding
