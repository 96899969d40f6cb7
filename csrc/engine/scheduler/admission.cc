// How requests come: from the queue to pages, from there to rows.
#include <algorithm>
#include <utility>

#include "engine/scheduler/clock.h"
#include "engine/scheduler/scheduler.h"

namespace decoding {
namespace {

// Rows' worth of requests that have pages before they have rows.
constexpr int kLeastAhead = 4, kAheadOfRows = 4;

std::span<const int32_t> shared_tokens(const RunnerRequest& request, bool has_encoder) {
  if (has_encoder) return request.source;
  return std::span(request.prompt).first(request.prompt.size() - 1);
}

// Whether keys and values of the source follow from its tokens alone: where others are masked
// before or between them, they follow from their positions, too.
bool is_in_place(const RunnerRequest& request) {
  for (size_t i = 0; i < request.source.size(); ++i) {
    if (request.source_positions[i] != static_cast<int32_t>(i)) return false;
  }
  return true;
}

}  // namespace

void Scheduler::enqueue(int64_t id, Submission&& submission) {
  Entry& entry = entries_[id];
  entry.given = std::move(submission);
  entry.key = class_key(entry.given.request.request);
  const double now = now_seconds();
  entry.deadline = now + entry.given.seconds;
  entry.stops = now + entry.given.max_time;
  const RunnerRequest& given = entry.given.request;
  queue_.push({.id = id,
               .priority = entry.given.priority,
               .deadline = entry.deadline,
               .arrived = now,
               .pages = shared_pages(given) + own_pages(given),
               .rows = entry.key.rows()});
}

void Scheduler::expire(double now) {
  expired_.clear();
  queue_.expire(now, expired_);
  for (const int64_t id : expired_) {
    made_.ends.emplace_back(id, OutputKind::expired);
    entries_.erase(id);
  }
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const int64_t id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    leave(id, OutputKind::expired);
  }
}

// Requests get their pages before there are rows for them, so that what is read is read together
// and rows that become free are taken at once.
void Scheduler::admit() {
  const int ahead = std::max(kLeastAhead, limits_.rows / kAheadOfRows);
  const auto fits = [&](const Waiting& waiting) {
    return rows_used_ + rows_ahead_ + waiting.rows <= limits_.rows + ahead && has_pages(waiting);
  };
  while (const auto waiting = queue_.pop(fits)) admit(waiting->id, entries_.at(waiting->id));
}

bool Scheduler::has_pages(const Waiting& waiting) const {
  if (!overcommit_) return waiting.pages <= pages_.available();
  const RunnerRequest& given = entries_.at(waiting.id).given.request;
  return overcommit_->admits(given, shared_pages(given));
}

// By which keys of its prompt are rotated.
int Scheduler::rotary_table(const RunnerRequest& request) const {
  return rotary_tables_.of_length(static_cast<int>(request.prompt.size()));
}

void Scheduler::admit(int64_t id, Entry& entry) {
  const RunnerRequest& given = entry.given.request;
  Admitted& admitted = entry.admitted;
  admitted.request = &given;
  const auto tokens = shared_tokens(given, has_encoder_);
  if (has_encoder_) {
    const bool is_known =
        is_in_place(given) && cache_.find_source(entry.given.salt, tokens, admitted.shared_pages);
    entry.read = is_known ? static_cast<int>(tokens.size()) : 0;
  } else {
    entry.read = kPageSize *
                 cache_.find(entry.given.salt, rotary_table(given), tokens, admitted.shared_pages);
  }
  const int found = static_cast<int>(admitted.shared_pages.size());
  pages_.allocate(shared_pages(given) - found, admitted.shared_pages);
  if (overcommit_) {
    overcommit_->admit(id, admitted);
  } else {
    pages_.allocate(own_pages(given), admitted.own_pages);
  }
  if (entry.deadline < kNever) deadlines_.emplace(entry.deadline, id);
  rows_ahead_ += entry.key.rows();
  tokens_ahead_ += missing(entry);
  const auto is_lower = [&](int64_t other) {
    return entries_.at(other).given.priority < entry.given.priority;
  };
  ahead_.insert(std::find_if(ahead_.begin(), ahead_.end(), is_lower), id);
}

// As many tokens as the budget allows, in the order of joining; sources as a whole, one at least.
// Where there are no rows for the first of them, it waits until there is enough to read at once.
// Returns how many it has read.
int Scheduler::read() {
  if (tokens_ahead_ == 0) return 0;
  const int free = limits_.rows - rows_used_;
  const int needed = first_unread().key.rows();
  const bool others = rows_ahead_ > needed || queue_.size() > 0;
  const int budget = budget_.tokens(rows_used_, std::min(free, rows_ahead_), others);
  if (tokens_ahead_ < budget && needed > free) return 0;
  parts_.clear();
  int count = 0;
  for (const int64_t id : ahead_) {
    Entry& entry = entries_.at(id);
    const int missing = this->missing(entry);
    if (missing == 0) continue;
    if (static_cast<int>(parts_.size()) == limits_.rows) break;  // a packed pass has no more texts
    const int part = part_of(missing, budget - count);
    if (part == 0) break;
    parts_.push_back({&entry.admitted, entry.read, part});
    entry.read += part;
    count += part;
  }
  tokens_ahead_ -= count;
  const double begin = now_seconds();
  runner_.read(parts_);
  budget_.has_read(count, now_seconds() - begin);
  return count;
}

// Of those that are admitted, where one has tokens to be read.
const Scheduler::Entry& Scheduler::first_unread() const {
  const auto is_unread = [&](int64_t id) { return missing(entries_.at(id)) > 0; };
  return entries_.at(*std::ranges::find_if(ahead_, is_unread));
}

// Tokens of its source or prompt that are to be read.
int Scheduler::missing(const Entry& entry) const {
  return entry.given.request.shared(has_encoder_) - entry.read;
}

// How many of the tokens that a text lacks are read next, where there is room for so many.
int Scheduler::part_of(int missing, int room) const {
  const bool fits = missing <= room || (has_encoder_ && parts_.empty());
  return fits ? missing : has_encoder_ ? 0 : room;
}

// Returns how many rows have taken part.
int Scheduler::step() {
  const double begin = now_seconds();
  stop(begin);
  if (!(overcommit_ ? overcommit_->step() : runner_.step())) return 0;
  ++stats_.steps;
  budget_.has_stepped(now_seconds() - begin);
  return overcommit_ ? overcommit_->rows_running() : rows_used_;
}

// Who is out of time ends with the next step.
void Scheduler::stop(double now) {
  while (!stops_.empty() && stops_.begin()->first <= now) {
    runner_.stop(entries_.at(stops_.begin()->second).admitted.slot);
    stops_.erase(stops_.begin());
  }
}

// The pages of a text that has been read may serve others.
void Scheduler::remember(const Entry& entry) {
  const RunnerRequest& given = entry.given.request;
  const auto tokens = shared_tokens(given, has_encoder_);
  const auto& pages = entry.admitted.shared_pages;
  if (!has_encoder_) {
    cache_.insert(entry.given.salt, rotary_table(given), tokens, pages);
  } else if (is_in_place(given)) {
    cache_.insert_source(entry.given.salt, tokens, pages);
  }
}

// What has been read takes part as soon as there are rows, own pages and a place in a class. What
// finds none is passed by so many others at most.
void Scheduler::join() {
  passed_.clear();
  joining_.clear();
  bool blocked = false;
  std::erase_if(ahead_, [&](int64_t id) {
    Entry& entry = entries_.at(id);
    if (blocked || missing(entry) > 0) return false;
    const bool fits = rows_used_ + entry.key.rows() <= limits_.rows &&
                      (!overcommit_ || overcommit_->may_join(entry.admitted));
    const int c = fits ? class_for(entry.key) : -1;
    if (c < 0) {
      passed_.push_back(&entry);
      blocked = entry.bypasses >= kMostBypasses;
      return false;
    }
    for (Entry* passed : passed_) blocked |= ++passed->bypasses >= kMostBypasses;
    join(c, id, entry);
    return true;
  });
  if (!joining_.empty()) runner_.join(joining_);
}

// A class that takes one more such request, or may be opened for it, rather one that never was; -1:
// none.
int Scheduler::class_for(const ClassKey& key) const {
  int idle = -1;
  for (int c = 0; c < limits_.classes; ++c) {
    const OpenClass& in = classes_[c];
    if (in.key == key && !in.free.empty()) return c;
    if (in.used == 0 && (idle < 0 || !in.key)) idle = c;
  }
  return idle;
}

void Scheduler::join(int c, int64_t id, Entry& entry) {
  OpenClass& in = classes_[c];
  if (in.key != entry.key) open(c, entry);
  const int sentence = in.free.back();
  in.free.pop_back();
  ++in.used;
  rows_used_ += entry.key.rows();
  rows_ahead_ -= entry.key.rows();
  id_of_[c][sentence] = id;
  entry.admitted.slot = {c, sentence};
  entry.joined = true;
  if (entry.stops < kNever) stops_.emplace(entry.stops, id);
  if (entry.given.streams) start_stream(id, entry);
  remember(entry);
  if (overcommit_) overcommit_->join(id);
  joining_.push_back(&entry.admitted);
}

void Scheduler::open(int c, const Entry& entry) {
  OpenClass& in = classes_[c];
  in.key = entry.key;
  const int sentences = runner_.open(c, entry.given.request.request);
  in.free.resize(sentences);
  for (int i = 0; i < sentences; ++i) in.free[i] = sentences - 1 - i;
  id_of_[c].assign(sentences, 0);
}

}  // namespace decoding
