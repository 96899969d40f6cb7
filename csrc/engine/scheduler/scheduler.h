// The loop of continuous batching (Yu et al. 2022, Orca): between any two steps it takes requests
// in and lets them go. A thread of its own runs it; callers submit, cancel and wait on any others.
//
// A request is admitted when there are rows, pages and a place in a class for the longest that it
// may become, so nothing that runs is ever swapped out, unless more is admitted (overcommit.h). Its
// source or prompt is read between steps, so many tokens at a time, and then its rows take part.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/runner.h"
#include "engine/scheduler/iteration_tokens.h"
#include "engine/scheduler/output.h"
#include "engine/scheduler/overcommit.h"
#include "engine/scheduler/page_allocator.h"
#include "engine/scheduler/prefix_cache.h"
#include "engine/scheduler/reading_budget.h"
#include "engine/scheduler/request_queue.h"
#include "engine/search/request_class.h"
#include "kernels/attention/rotary.h"

namespace decoding {

struct Submission {
  RunnerRequest request;
  int32_t priority = 0;
  double seconds = kNever;   // from now until it expires
  double max_time = kNever;  // seconds from now until its next step is its last
  bool streams = false;      // its tokens are delivered as they are certain
  uint64_t salt = 0;         // see prefix_cache.h
  int32_t item = 0;          // of its call, for messages
};

struct SchedulerStats {
  int64_t running = 0, waiting = 0;  // requests
  int64_t pages_used = 0, pages_total = 0;
  int64_t steps = 0;
  int64_t tokens = 0;  // of results
  IterationTokens iterations;
  PrefixCacheStats cache;
  OvercommitStats overcommit;
  double reading = 0, stepping = 0, scheduling = 0;  // seconds
};

class Scheduler {
 public:
  // The runner is bound to memory for these limits, for a model of this spec, and stays.
  // page_bytes: of a page in all layers. most_waiting: requests. overcommits: see overcommit.h.
  Scheduler(Runner& runner, const RunnerLimits& limits, const ModelSpec& spec, int64_t page_bytes,
            int most_waiting, bool caches, bool overcommits);
  ~Scheduler();

  // Returns the id of the first; those of the others follow. together: they are reported as one
  // batch. Throws Error for a request that never fits, and when too many wait: then none is taken.
  int64_t submit(std::vector<Submission> submissions, bool together = false);
  // Nothing happens where it has ended. id: of a batch's first request: all of them.
  void cancel(int64_t id);
  // What there is to hear, in place of what `to` holds; waits for it up to so many seconds. Where
  // the loop could not go on, throws what ended it: the requests that are left have failed.
  void wait(double seconds, Outputs& to);
  SchedulerStats stats() const;
  // Takes no more requests. Returns when those that it has are done, or else cancelled.
  void close(bool drain);

 private:
  // A request from its submission to its end.
  struct Entry {
    Submission given;
    ClassKey key;
    double deadline = kNever, stops = kNever;  // when
    Admitted admitted;
    int read = 0;      // shared positions whose keys are in their pages
    int bypasses = 0;  // of its rows, by others
    bool joined = false, leaves = false;
  };
  // A request whose tokens are delivered as they are certain.
  struct Stream {
    int64_t id;
    Slot slot;
    int width;          // the most tokens of a row
    int delivered = 0;  // tokens of its longest row that callers have
  };
  struct OpenClass {
    std::optional<ClassKey> key;
    std::vector<int> free;  // sentences
    int used = 0;
  };

  void run();
  void take_mail(std::unique_lock<std::mutex>& lock);
  void enqueue(int64_t id, Submission&& submission);
  void expire(double now);
  void admit();
  int class_for(const ClassKey& key) const;
  bool has_pages(const Waiting& waiting) const;
  void admit(int64_t id, Entry& entry);
  int read();
  const Entry& first_unread() const;
  int missing(const Entry& entry) const;
  int part_of(int missing, int room) const;
  int step();
  void stop(double now);
  void join();
  void join(int request_class, int64_t id, Entry& entry);
  void open(int request_class, const Entry& entry);
  void remember(const Entry& entry);
  void start_stream(int64_t id, const Entry& entry);
  void end_stream(int64_t id);
  void stream();
  void collect();
  Output results(int64_t id, const Entry& entry);
  void leave(int64_t id, OutputKind kind);
  void release(int64_t id, Entry& entry);
  void release_pages(int64_t id, Entry& entry);
  void publish();
  void cancel_all();
  void check_fits(const RunnerRequest& request) const;
  int rotary_table(const RunnerRequest& request) const;
  int shared_pages(const RunnerRequest& request) const;
  int own_pages(const RunnerRequest& request) const;

  Runner& runner_;
  const RunnerLimits limits_;
  const bool has_encoder_, has_own_pages_;  // convolutions have none
  const RotaryTables rotary_tables_;
  const int64_t page_bytes_;

  // The loop's own.
  PageAllocator pages_;
  PrefixCache cache_;
  RequestQueue queue_;
  ReadingBudget budget_;
  std::unique_ptr<Overcommit> overcommit_;  // null: own pages are given at admission
  std::unordered_map<int64_t, Entry> entries_;
  std::vector<OpenClass> classes_;
  std::vector<std::vector<int64_t>> id_of_;                // [class][sentence]
  std::deque<int64_t> ahead_;                              // admitted, in the order of joining
  int rows_used_ = 0, rows_ahead_ = 0, tokens_ahead_ = 0;  // tokens: to be read
  std::set<std::pair<double, int64_t>> deadlines_;         // and ids, of what has been admitted
  std::set<std::pair<double, int64_t>> stops_;             // and ids, of what has joined
  std::vector<Stream> streams_;                            // that have joined
  std::vector<Entry*> passed_;
  std::vector<const Admitted*> joining_;
  std::vector<ReadPart> parts_;
  std::vector<Ended> ended_;
  std::vector<int64_t> expired_;
  Output certain_, fetched_;  // of a stream, and of a request that has ended

  // Shared with callers.
  mutable std::mutex mutex_;
  std::condition_variable mail_came_, output_came_;
  std::vector<std::pair<int64_t, Submission>> submitted_;
  std::vector<int64_t> cancelled_;
  Batches batches_;
  Outputs outputs_, made_;  // to be heard, and since the last publish()
  SchedulerStats stats_, published_;
  int64_t next_id_ = 1;
  int waiting_ = 0;
  const int most_waiting_;
  bool closing_ = false, drains_ = true, ended_loop_ = false;
  std::exception_ptr lost_;  // why the loop has ended, where it did so by itself
  const pid_t process_ = getpid();
  std::mutex ending_;  // who ends the thread
  std::thread thread_;
};

}  // namespace decoding
