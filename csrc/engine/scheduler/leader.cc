#include "engine/scheduler/leader.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/check.h"

namespace decoding {

std::pair<int64_t, bool> SentTables::number(const Request& request) {
  const int32_t* table = request.configs[0].stop_table;
  if (table == nullptr) return {kNone, false};
  const auto found = std::ranges::find(sent_, table, &Sent::table);
  if (found == sent_.end()) {
    sent_.push_back({table, request.stop_table_owner, next_});
    return {next_++, true};
  }
  found->owner = request.stop_table_owner;
  return {found->number, false};
}

std::vector<int64_t> SentTables::unused() {
  std::vector<int64_t> numbers;
  std::erase_if(sent_, [&](const Sent& sent) {
    const bool expired = sent.owner.expired();
    if (expired) numbers.push_back(sent.number);
    return expired;
  });
  return numbers;
}

// Has the other ranks do something, and does it. An error ends it on all of them.
template <typename Write, typename Work>
auto Leader::lead(Command command, Write&& write, Work&& work) {
  try {
    const auto lock = own_.lock_launches();
    message_.clear();
    message_.put(command);
    write();
    ranks_.broadcast(message_.bytes());
    return work();
  } catch (const std::exception& error) {
    failed_ = true;
    ranks_.fail(error.what());
    throw;
  }
}

void Leader::bind(const RunnerLimits&, void*, size_t) {
  throw Error("each rank binds its own runner");
}

int Leader::open(int request_class, const Request& request) {
  return lead(
      Command::open,
      [&] {
        message_.put(request_class);
        put(request);
      },
      [&] { return own_.open(request_class, request); });
}

void Leader::read(std::span<const ReadPart> parts) {
  lead(
      Command::read,
      [&] {
        message_.put(static_cast<int64_t>(parts.size()));
        for (const ReadPart& part : parts) {
          message_.put(part.first);
          message_.put(part.count);
          message_.put_list(part.admitted->shared_pages);
          put_texts(*part.admitted->request);
        }
      },
      [&] { own_.read(parts); });
}

void Leader::join(std::span<const Admitted* const> joining) {
  lead(
      Command::join,
      [&] {
        message_.put(static_cast<int64_t>(joining.size()));
        for (const Admitted* admitted : joining) {
          message_.put(admitted->slot);
          message_.put_list(admitted->shared_pages);
          message_.put_list(admitted->own_pages);
          put_texts(*admitted->request);
          put(admitted->request->request);
          put_table(admitted->request->request);
        }
      },
      [&] { own_.join(joining); });
}

void Leader::stop(Slot slot) {
  lead(Command::stop, [&] { message_.put(slot); }, [&] { own_.stop(slot); });
}

void Leader::extend(std::span<const Extension> extensions) {
  lead(
      Command::extend,
      [&] {
        message_.put(static_cast<int64_t>(extensions.size()));
        for (const Extension& extension : extensions) {
          message_.put(extension.admitted->slot);
          message_.put(extension.first);
          message_.put_list(extension.admitted->own_pages);
        }
      },
      [&] { own_.extend(extensions); });
}

bool Leader::pause(Slot slot) {
  return lead(Command::pause, [&] { message_.put(slot); }, [&] { return own_.pause(slot); });
}

void Leader::resume(const Admitted& admitted, int steps) {
  lead(
      Command::resume,
      [&] {
        message_.put(admitted.slot);
        message_.put(steps);
        message_.put_list(admitted.own_pages);
      },
      [&] { own_.resume(admitted, steps); });
}

void Leader::save(std::span<const int32_t> pages, std::span<const int32_t> to) {
  lead(
      Command::save,
      [&] {
        message_.put_list(pages);
        message_.put_list(to);
      },
      [&] { own_.save(pages, to); });
}

void Leader::restore(std::span<const int32_t> from, std::span<const int32_t> pages) {
  lead(
      Command::restore,
      [&] {
        message_.put_list(from);
        message_.put_list(pages);
      },
      [&] { own_.restore(from, pages); });
}

bool Leader::step() {
  check_ranks();
  return lead(Command::step, [] {}, [&] { return own_.step(); });
}

void Leader::ended(std::vector<Ended>& to) {
  const size_t before = to.size();
  own_.ended(to);
  if (to.size() == before) return;
  slots_.clear();
  for (size_t i = before; i < to.size(); ++i) slots_.push_back(to[i].slot);
  lead(Command::ended, [&] { message_.put_list(slots_); }, [] {});
}

// Who is lost comes to no more messages, so one of these throws.
void Leader::check_ranks() {
  while (ranks_.is_torn()) lead(Command::none, [] {}, [] {});
}

void Leader::end() noexcept {
  if (std::exchange(failed_, true)) return;
  try {
    lead(Command::end, [] {}, [] {});
  } catch (const std::exception&) {
    // Who is lost needs no end.
  }
}

// All but its table of stop strings.
void Leader::put(const Request& request) {
  const Beam* beam = beam_of(request.search);
  message_.put(request.rows_per_sentence);
  message_.put(static_cast<int64_t>(request.search.index()));
  message_.put(beam == nullptr ? Beam{} : *beam);
  message_.put(request.groups());
  message_.put(request.process);
  message_.put_list(request.stop_first);
  message_.put_list(request.configs);
  message_.put_list(request.words);
}

void Leader::put_texts(const RunnerRequest& request) {
  message_.put_list(request.source);
  message_.put_list(request.source_positions);
  message_.put_list(request.prompt);
}

void Leader::put_table(const Request& request) {
  message_.put_list(tables_.unused());
  const auto [number, is_new] = tables_.number(request);
  message_.put(number);
  table_.resize(is_new ? int64_t{request.stop_states} * vocab_ : 0);
  if (is_new) own_.copy_stop_table(request.configs[0].stop_table, table_);
  message_.put_list(table_);
}

}  // namespace decoding
