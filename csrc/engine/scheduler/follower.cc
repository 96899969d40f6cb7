#include "engine/scheduler/follower.h"

#include <chrono>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/thread.h"

namespace decoding {
namespace {

// As Leader::put() has written it.
Request get_request(MessageReader& message) {
  Request request;
  request.rows_per_sentence = message.get<int>();
  const auto search = message.get<int64_t>();
  const auto beam = message.get<Beam>();
  const int groups = message.get<int>();
  for (const Search& each :
       std::initializer_list<Search>{Greedy{}, Sampling{}, beam, Diverse{beam, groups}}) {
    if (static_cast<int64_t>(each.index()) == search) request.search = each;
  }
  request.process = message.get<bool>();
  request.stop_first = message.get_list<int32_t>();
  request.configs = message.get_list<SentenceConfig>();
  request.words = message.get_list<int32_t>();
  return request;
}

RunnerRequest get_texts(MessageReader& message) {
  RunnerRequest request;
  request.source = message.get_list<int32_t>();
  request.source_positions = message.get_list<int32_t>();
  request.prompt = message.get_list<int32_t>();
  return request;
}

}  // namespace

Follower::Follower(Runner& runner, Ranks& ranks) : runner_(runner), ranks_(ranks) {
  thread_ = start_thread([this] { run(); });
}

Follower::~Follower() {
  // A forked child has not got the thread.
  if (process_ == getpid()) {
    close();
  } else {
    thread_.detach();
  }
}

bool Follower::wait(double seconds) {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return has_ended_; });
  if (lost_) std::rethrow_exception(lost_);
  return has_ended_;
}

void Follower::close() {
  const std::lock_guard ending(ending_);
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    leaves_ = !has_ended_;
  }
  if (leaves_) ranks_.fail("its engine was closed before that of rank 0");
  thread_.join();
}

void Follower::run() {
  std::exception_ptr lost;
  try {
    runner_.begin();
    std::vector<std::byte> bytes;
    do {
      ranks_.broadcast(bytes);
      CHECK(!leaves_, "the engine was closed before that of rank 0");
    } while (follow(MessageReader(bytes)));
  } catch (const std::exception& error) {
    if (!leaves_) ranks_.fail(error.what());
    lost = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  lost_ = lost;
  has_ended_ = true;
  ended_.notify_all();
}

// False: that was all.
bool Follower::follow(MessageReader message) {
  switch (message.get<Command>()) {
    case Command::none:
      break;
    case Command::open:
      open(message);
      break;
    case Command::read:
      read(message);
      break;
    case Command::join:
      join(message);
      break;
    case Command::stop:
      runner_.stop(message.get<Slot>());
      break;
    case Command::extend:
      extend(message);
      break;
    case Command::pause:
      runner_.pause(message.get<Slot>());
      break;
    case Command::resume:
      resume(message);
      break;
    case Command::save: {
      const auto pages = message.get_list<int32_t>();
      runner_.save(pages, message.get_list<int32_t>());
      break;
    }
    case Command::restore: {
      const auto from = message.get_list<int32_t>();
      runner_.restore(from, message.get_list<int32_t>());
      break;
    }
    case Command::step:
      runner_.step();
      break;
    case Command::ended:
      runner_.await_ended(message.get_list<Slot>());
      break;
    case Command::end:
      return false;
  }
  return true;
}

void Follower::open(MessageReader& message) {
  const int request_class = message.get<int>();
  runner_.open(request_class, get_request(message));
}

void Follower::read(MessageReader& message) {
  const auto count = message.get<int64_t>();
  std::vector<RunnerRequest> requests(count);
  std::vector<Admitted> admitted(count);
  std::vector<ReadPart> parts(count);
  for (int64_t i = 0; i < count; ++i) {
    parts[i].admitted = &admitted[i];
    parts[i].first = message.get<int>();
    parts[i].count = message.get<int>();
    admitted[i].request = &requests[i];
    admitted[i].shared_pages = message.get_list<int32_t>();
    requests[i] = get_texts(message);
  }
  runner_.read(parts);
}

void Follower::join(MessageReader& message) {
  std::vector<const Admitted*> joining(message.get<int64_t>());
  for (const Admitted*& each : joining) {
    const Slot slot = message.get<Slot>();
    Joined& joined = joined_[slot];
    joined.admitted.request = &joined.request;
    joined.admitted.slot = slot;
    joined.admitted.shared_pages = message.get_list<int32_t>();
    joined.admitted.own_pages = message.get_list<int32_t>();
    joined.request = get_texts(message);
    joined.request.request = get_request(message);
    joined.stop_table = stop_table(message);
    joined.request.request.configs[0].stop_table = joined.stop_table.get();
    each = &joined.admitted;
  }
  runner_.join(joining);
}

void Follower::extend(MessageReader& message) {
  std::vector<Extension> extensions(message.get<int64_t>());
  for (Extension& extension : extensions) {
    Admitted& admitted = joined_.at(message.get<Slot>()).admitted;
    extension = {&admitted, message.get<int>()};
    admitted.own_pages = message.get_list<int32_t>();
  }
  runner_.extend(extensions);
}

void Follower::resume(MessageReader& message) {
  Admitted& admitted = joined_.at(message.get<Slot>()).admitted;
  const int steps = message.get<int>();
  admitted.own_pages = message.get_list<int32_t>();
  runner_.resume(admitted, steps);
}

// Null where a request has none.
std::shared_ptr<const int32_t> Follower::stop_table(MessageReader& message) {
  for (const int64_t unused : message.get_list<int64_t>()) stop_tables_.erase(unused);
  const auto number = message.get<int64_t>();
  const auto sent = message.get_list<int32_t>();
  if (number == SentTables::kNone) return nullptr;
  if (!sent.empty()) stop_tables_[number] = runner_.make_stop_table(sent);
  return stop_tables_.at(number);
}

}  // namespace decoding
