// Own pages for requests as their rows grow, so that more are admitted than would fit if each
// became as long as it may. Where no page is free, a request is swapped out: its own pages are
// copied to memory of the host and given to others, and it pauses. It comes back to other pages,
// before anyone else joins, and goes on where it was.
//
// The request with the fewest steps goes first, and never the oldest that runs. The pages that
// requests share stay in the pool, and a request is admitted only if, beside them all, the largest
// that an admitted one may become fits. So with all others swapped out each can go on to its end:
// the oldest always does, and in the end everybody.
//
// One thread uses it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/runner.h"
#include "engine/scheduler/page_allocator.h"

namespace decoding {

struct OvercommitStats {
  int64_t swapped = 0;  // requests that are out
  int64_t swaps = 0;    // requests that have been swapped out, each time
  int64_t bytes = 0;    // copied to the host
};

class Overcommit {
 public:
  // The runner and the pool must outlive it. page_bytes: of a page in all layers.
  Overcommit(Runner& runner, PageAllocator& pages, bool has_encoder, int64_t page_bytes);

  // Whether a request may be admitted, which needs so many shared pages.
  bool admits(const RunnerRequest& request, int shared_pages) const;
  // It has been given its shared pages, and has no own ones.
  void admit(int64_t id, Admitted& admitted);
  // Whether there are own pages for its first steps.
  bool may_join(const Admitted& admitted) const;
  // Gives it those. Then the runner lets it join.
  void join(int64_t id);

  // Brings back those that are out, the oldest first, as far as there are pages.
  void resume();
  // A step of the runner, before which each request gets the pages that it needs.
  bool step();
  // One that has joined is to end at once. False: it has ended by itself, which is yet to be
  // reported.
  bool leave(int64_t id);
  // One that was admitted is forgotten; its own pages are released next.
  void end(int64_t id);

  const OvercommitStats& stats() const { return stats_; }
  int rows_running() const { return rows_running_; }

 private:
  enum class State { admitted, running, out, ended };
  struct Member {
    int64_t id;
    Admitted* admitted;
    State state = State::admitted;
    int64_t began = 0;  // number of the runner's step before its first, had it never paused
    int64_t due = 0;    // number of the step before the first that it has no pages for
    int steps = 0;      // that it had made when it went out
    std::vector<int32_t> saved = {};  // pages of the host's memory
  };

  Member& member(int64_t id);
  int steps_of(const Member& member) const;
  int written_pages(const Member& member) const;
  int next_pages(const RunnerRequest& request, int steps) const;
  int all_pages(const RunnerRequest& request) const;
  bool fits(int pages) const;
  int room() const;
  int allocate(Member& member);
  void start(Member& member, int steps);
  void extend(Member& member);
  Member& victim(Member& member);
  bool pause(Member& member);
  void swap_out(Member& member);
  void swap_in(Member& member);

  Runner& runner_;
  PageAllocator& pages_;
  const bool has_encoder_;
  const int64_t page_bytes_;

  std::vector<Member> members_;  // that have been admitted, the oldest first
  int64_t steps_ = 0;            // of the runner
  int own_used_ = 0;             // own pages of all
  int promised_ = 0;             // own pages for the first steps of those that are yet to join
  int rows_running_ = 0;
  int most_own_ = 0;                 // pages that a member may come to own
  std::vector<int32_t> free_saved_;  // the host's pages that nobody uses
  int32_t saved_pages_ = 0;          // the host's
  std::vector<Extension> extensions_;
  OvercommitStats stats_;
};

}  // namespace decoding
