#include "engine/scheduler/scheduler.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "core/check.h"
#include "core/thread.h"
#include "engine/scheduler/clock.h"
#include "engine/search/batch.h"
#include "engine/search/faults.h"
#include "kernels/attention/pages.h"

namespace decoding {
namespace {

constexpr std::chrono::milliseconds kPoll{100};  // between two checks of ranks, with nothing to do

}  // namespace

Scheduler::Scheduler(Runner& runner, const RunnerLimits& limits, const ModelSpec& spec,
                     int64_t page_bytes, int most_waiting, bool caches, bool overcommits)
    : runner_(runner),
      limits_(limits),
      has_encoder_(spec.encoder.has_value()),
      has_own_pages_(!spec.decoder.convolution),
      rotary_tables_(rotary_tables(spec.decoder)),
      page_bytes_(page_bytes),
      pages_(limits.pages),
      cache_(pages_, caches),
      queue_(most_waiting),
      budget_(limits.tokens, runner_.is_synchronous()),
      classes_(limits.classes),
      id_of_(limits.classes),
      most_waiting_(most_waiting) {
  if (overcommits && has_own_pages_) {
    overcommit_ = std::make_unique<Overcommit>(runner_, pages_, has_encoder_, page_bytes);
  }
  publish();
  thread_ = start_thread([this] { run(); });
}

Scheduler::~Scheduler() {
  // A forked child has not got the thread.
  if (process_ == getpid()) {
    close(false);
  } else {
    thread_.detach();
  }
}

int64_t Scheduler::submit(std::vector<Submission> submissions, bool together) {
  for (const Submission& submission : submissions) check_fits(submission.request);
  const int count = static_cast<int>(submissions.size());
  std::unique_lock lock(mutex_);
  if (lost_) std::rethrow_exception(lost_);
  CHECK(!closing_, "the engine is closed");
  CHECK(waiting_ + count <= most_waiting_, waiting_, " requests wait already, and ", most_waiting_,
        " may: try later");
  const size_t needed = submitted_.size() + count, room = submitted_.capacity();
  if (room < needed) submitted_.reserve(std::max(needed, 2 * room));  // for all of them, or none
  const int64_t first = next_id_;
  if (together) batches_.add(first, count);
  waiting_ += count;
  for (Submission& submission : submissions) {
    submitted_.emplace_back(next_id_++, std::move(submission));
  }
  lock.unlock();  // which who is woken takes
  mail_came_.notify_one();
  return first;
}

void Scheduler::check_fits(const RunnerRequest& request) const {
  const int pages = shared_pages(request) + own_pages(request);
  CHECK(pages <= limits_.pages, "the request may need ", pages, " pages (", pages * page_bytes_,
        " bytes), the engine has ", limits_.pages, " (", limits_.pages * page_bytes_,
        " bytes): ask for fewer new tokens or beams, or give the engine more memory");
  const int rows = class_key(request.request).rows();
  CHECK(rows <= limits_.rows, "the request needs ", rows, " rows, the engine has ", limits_.rows,
        ": raise max_requests");
}

void Scheduler::cancel(int64_t id) {
  const std::lock_guard lock(mutex_);
  batches_.append_ids(id, cancelled_);
  mail_came_.notify_one();
}

void Scheduler::wait(double seconds, Outputs& to) {
  to.clear();
  std::unique_lock lock(mutex_);
  output_came_.wait_for(lock, std::chrono::duration<double>(seconds),
                        [&] { return !outputs_.empty() || ended_loop_; });
  if (outputs_.empty() && lost_) std::rethrow_exception(lost_);
  std::swap(outputs_, to);
}

SchedulerStats Scheduler::stats() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

void Scheduler::close(bool drain) {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    drains_ = drains_ && drain;
    mail_came_.notify_one();
  }
  const std::lock_guard lock(ending_);
  if (thread_.joinable()) thread_.join();
}

int Scheduler::shared_pages(const RunnerRequest& request) const {
  return static_cast<int>(pages_of(request.shared(has_encoder_)));
}

int Scheduler::own_pages(const RunnerRequest& request) const {
  if (!has_own_pages_) return 0;
  return static_cast<int>(
      pages_of(int64_t{request.request.rows_per_sentence} * request.own(has_encoder_)));
}

void Scheduler::run() {
  std::exception_ptr lost;
  try {
    runner_.begin();
    while (true) {
      std::unique_lock lock(mutex_);
      const auto has_work = [&] {
        return !entries_.empty() || !submitted_.empty() || !cancelled_.empty() || closing_;
      };
      while (!mail_came_.wait_for(lock, kPoll, has_work)) runner_.check_ranks();
      if (closing_ && (!drains_ || (entries_.empty() && submitted_.empty()))) break;
      take_mail(lock);
      {
        const Timed timed(stats_.scheduling);
        expire(now_seconds());
        if (overcommit_) overcommit_->resume();
        admit();
      }
      int tokens = 0;
      {
        const Timed timed(stats_.reading);
        join();  // those that were read ahead
        tokens += read();
        join();
      }
      {
        const Timed timed(stats_.stepping);
        tokens += step();
      }
      stats_.iterations.add(tokens);
      const Timed timed(stats_.scheduling);
      stream();
      collect();
      publish();
    }
    cancel_all();
  } catch (...) {  // from here on nothing is allocated: that may be what has failed
    lost = std::current_exception();
    entries_.clear();
  }
  runner_.end();
  const std::lock_guard lock(mutex_);
  lost_ = lost;
  closing_ = ended_loop_ = true;
  published_.running = published_.waiting = 0;
  output_came_.notify_all();
}

// Leaves the lock.
void Scheduler::take_mail(std::unique_lock<std::mutex>& lock) {
  auto submitted = std::exchange(submitted_, {});
  const auto cancelled = std::exchange(cancelled_, {});
  lock.unlock();
  for (auto& [id, submission] : submitted) enqueue(id, std::move(submission));
  for (const int64_t id : cancelled) leave(id, OutputKind::cancelled);
}

// Takes the results of what has ended.
void Scheduler::collect() {
  ended_.clear();
  runner_.ended(ended_);
  for (const Ended& ended : ended_) {
    const int64_t id = id_of_[ended.slot.request_class][ended.slot.sentence];
    Entry& entry = entries_.at(id);
    if (entry.leaves) {
      // It has been reported.
    } else if (ended.fault != 0) {
      // What its text left may be what was not finite: the next one computes it anew.
      cache_.forget(entry.admitted.shared_pages);
      made_.ends.emplace_back(id, OutputKind::fault);
      made_.ends.back().message =
          fault_text(ended.fault, entry.given.item, runner_.first_overflow(entry.admitted));
    } else {
      made_.ends.push_back(results(id, entry));
    }
    release(id, entry);
    entries_.erase(id);
  }
}

Output Scheduler::results(int64_t id, const Entry& entry) {
  const Request& request = entry.given.request.request;
  fetched_.resize(request.rows_per_sentence, request.steps());
  runner_.fetch(entry.admitted.slot, fetched_.results());
  Output output = fetched_.trimmed(id);
  for (const int32_t length : output.lengths) stats_.tokens += length;
  return output;
}

void Scheduler::start_stream(int64_t id, const Entry& entry) {
  const Request& request = entry.given.request.request;
  const bool competes = request.max_finished() > 0;
  if (competes && !std::holds_alternative<Beam>(request.search)) return;  // only its end is sure
  certain_.resize(request.rows_per_sentence, request.steps());
  streams_.push_back({id, entry.admitted.slot, request.steps()});
}

void Scheduler::end_stream(int64_t id) {
  std::erase_if(streams_, [&](const Stream& stream) { return stream.id == id; });
}

// Delivers the tokens that have become certain.
void Scheduler::stream() {
  Results certain = certain_.results();
  for (Stream& stream : streams_) {
    certain.width = stream.width;
    certain.from = stream.delivered;
    const int rows = runner_.certain(stream.slot, certain);
    if (rows > 0) made_.put_tokens(stream.id, certain, rows, stream.delivered);
  }
}

// A request goes before its end. Nothing happens where there is none.
void Scheduler::leave(int64_t id, OutputKind kind) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  if (entry.leaves) return;
  made_.ends.emplace_back(id, kind);
  end_stream(id);
  if (entry.joined && !(overcommit_ && overcommit_->leave(id))) {
    entry.leaves = true;  // its memory is free when the runner says so
    runner_.stop(entry.admitted.slot);
    return;
  }
  if (entry.joined) {
    release(id, entry);
  } else if (!queue_.cancel(id)) {
    std::erase(ahead_, id);
    rows_ahead_ -= entry.key.rows();
    tokens_ahead_ -= missing(entry);
    release_pages(id, entry);
  }
  entries_.erase(found);
}

void Scheduler::release(int64_t id, Entry& entry) {
  const Slot slot = entry.admitted.slot;
  OpenClass& in = classes_[slot.request_class];
  in.free.push_back(slot.sentence);
  --in.used;
  rows_used_ -= entry.key.rows();
  stops_.erase({entry.stops, id});
  if (entry.given.streams) end_stream(id);
  release_pages(id, entry);
}

void Scheduler::release_pages(int64_t id, Entry& entry) {
  deadlines_.erase({entry.deadline, id});
  if (overcommit_) overcommit_->end(id);
  pages_.release(entry.admitted.shared_pages);
  pages_.release(entry.admitted.own_pages);
}

// Callers hear of what has happened since the last call.
void Scheduler::publish() {
  stats_.running = static_cast<int64_t>(entries_.size()) - queue_.size();
  stats_.waiting = queue_.size();
  stats_.pages_used = pages_.used();
  stats_.pages_total = pages_.total();
  stats_.cache = cache_.stats();
  if (overcommit_) stats_.overcommit = overcommit_->stats();
  std::unique_lock lock(mutex_);
  published_ = stats_;
  waiting_ = queue_.size() + static_cast<int>(submitted_.size());
  batches_.collect(made_, cancelled_);
  if (made_.empty()) return;
  const bool is_first = outputs_.empty();
  outputs_.take(made_);
  lock.unlock();
  if (is_first) output_came_.notify_one();  // else somebody has been notified, and has yet to come
}

// What the loop has when it is asked to end.
void Scheduler::cancel_all() {
  const auto cancel = [&](int64_t id) { made_.ends.emplace_back(id, OutputKind::cancelled); };
  for (const auto& [id, entry] : entries_) {
    if (!entry.leaves) cancel(id);  // else it has been reported
  }
  entries_.clear();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, submission] : submitted_) cancel(id);
    submitted_.clear();
    closing_ = true;
  }
  publish();
}

}  // namespace decoding
