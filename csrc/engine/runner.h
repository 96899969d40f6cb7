// Steps of sentences that come and go, each with options of its own: continuous batching (Yu et al.
// 2022, Orca). engine/scheduler says what to do between two steps: what waits, what fits and
// in which pages is decided there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/spec.h"
#include "engine/model/overflow.h"
#include "engine/model/weights.h"
#include "engine/search/request.h"
#include "engine/search/results.h"
#include "kernels/collective/split_stream.h"
#include "kernels/search/join.h"

namespace decoding {

// All rows, as sentences of one row.
inline Limits rows_of(const RunnerLimits& limits) {
  return {.batch = limits.rows,
          .beams = 1,
          .source = limits.source,
          .prompt = limits.prompt,
          .target = limits.target,
          .candidates = limits.candidates,
          .controls = 1,  // for the scores of processed requests
          .tokens = limits.tokens,
          .pages = limits.pages,
          .input_rows = limits.classes * limits.rows};
}

// A request of one sentence, with its texts.
struct RunnerRequest {
  Request request;
  std::vector<int32_t> source, source_positions;  // tokens; empty without an encoder
  std::vector<int32_t> prompt;                    // of the decoder, at least one token

  // Positions of the keys that its rows share: of the source, or of the prompt but for its last
  // token, which the first step reads.
  int shared(bool has_encoder) const {
    return static_cast<int>(has_encoder ? source.size() : prompt.size() - 1);
  }
  // Positions of the keys that each row has of its own before the first step: of an
  // encoder-decoder's prompt but for its last token.
  int own_before(bool has_encoder) const {
    return has_encoder ? static_cast<int>(prompt.size()) - 1 : 0;
  }
  // Positions of the keys that each row may have of its own.
  int own(bool has_encoder) const { return own_before(has_encoder) + request.steps(); }
};

// Where a running request is kept.
struct Slot {
  int request_class, sentence;

  auto operator<=>(const Slot&) const = default;
};

// A request that has its memory.
struct Admitted {
  const RunnerRequest* request;
  Slot slot;
  std::vector<int32_t> shared_pages, own_pages;
};

inline JoiningSentence joining_sentence(const Admitted& admitted, bool has_encoder) {
  const RunnerRequest& given = *admitted.request;
  return {.id = admitted.slot.sentence,
          .prefix = given.own_before(has_encoder),
          .prompt_length = static_cast<int32_t>(given.prompt.size()) - 1,
          .first_token = given.prompt.back(),
          .stop_first = given.request.stop_first[0]};
}

// [first, first + count) of a request's shared positions. A source is read whole; the parts of a
// prompt are read in order, between any steps.
struct ReadPart {
  const Admitted* admitted;
  int first, count;
};

// A request that runs has got own pages, those from `first` on.
struct Extension {
  const Admitted* admitted;
  int first;
};

// A request that a step has ended.
struct Ended {
  Slot slot;
  int fault;  // 0, or as check_fault() reads it (engine/search/faults.h)
};

class Runner {
 public:
  virtual ~Runner() = default;

  virtual Arena plan(const RunnerLimits& limits) const = 0;
  virtual void bind(const RunnerLimits& limits, void* pool, size_t bytes) = 0;

  // Of the thread that makes all calls but these: its first.
  virtual void begin() {}

  // Whether read() and step() return when their work is done, and not before.
  virtual bool is_synchronous() const = 0;

  // Makes a class that no request runs in one of requests such as this; returns for how many.
  virtual int open(int request_class, const Request& request) = 0;

  // Reads shared positions, all parts at once.
  virtual void read(std::span<const ReadPart> parts) = 0;
  // Requests whose shared positions have been read take part in the next step.
  virtual void join(std::span<const Admitted* const> joining) = 0;
  // Its next step is its last. Then it is reported among those that have ended.
  virtual void stop(Slot slot) = 0;

  // A request must have own pages for all positions that a step writes.
  virtual void extend(std::span<const Extension> extensions) = 0;
  // It takes part in no more steps, and nothing reads or writes its pages. All else of it stays in
  // its slot until it resumes or another request joins there. False: it has ended, which is yet to
  // be told.
  virtual bool pause(Slot slot) = 0;
  // It takes part again, after so many steps, with the own pages that it has now.
  virtual void resume(const Admitted& admitted, int steps) = 0;
  // Copies pages to others in the host's memory, of which there are as many as are named, and back.
  virtual void save(std::span<const int32_t> pages, std::span<const int32_t> to) = 0;
  virtual void restore(std::span<const int32_t> from, std::span<const int32_t> pages) = 0;

  // One step of every request that has joined. False: there is none.
  virtual bool step() = 0;
  // Appends those that have ended since the last call. Their results stay until their slot is
  // joined again.
  virtual void ended(std::vector<Ended>& to) = 0;
  // In place of ended(), where somebody else says who has ended: waits until these have.
  virtual void await_ended(std::span<const Slot>) {}
  virtual void fetch(Slot slot, const Results& results) = 0;
  // The tokens of a request that has joined that are certain so far, from results.from on: those of
  // its rows, or where rows compete, as one row, what all that may still be the best begin with.
  // Returns how many rows these are: 0 where it has ended, and its end reports all.
  virtual int certain(Slot slot, const Results& results) = 0;

  // Tables of stop strings lie where steps read them, here on the host: copies one, [to.size()],
  // and makes one for requests.
  virtual void copy_stop_table(const int32_t* table, std::span<int32_t> to) const {
    std::copy_n(table, to.size(), to.begin());
  }
  virtual std::shared_ptr<const int32_t> make_stop_table(std::span<const int32_t> table) const {
    const auto copy = std::make_shared<std::vector<int32_t>>(table.begin(), table.end());
    return {copy, copy->data()};
  }

  // Of rank 0, which leads: held from a command to the other ranks until its work is launched here.
  virtual std::unique_lock<std::mutex> lock_launches() { return {}; }
  // Of ranks that share out a model: throws Error where one is lost, which is asked for while there
  // is nothing to do; and no more work comes.
  virtual void check_ranks() {}
  virtual void end() noexcept {}

  // With detect_overflow, of all steps and readings so far; any thread may ask.
  virtual std::vector<TensorOverflow> overflow() const { return {}; }
  // The first tensor of a request that was not finite; "" without detect_overflow.
  virtual std::string first_overflow(const Admitted&) const { return ""; }
};

// As make_cpu_session and make_cuda_session in session.h.
std::unique_ptr<Runner> make_cpu_runner(const ModelSpec& spec, const ModelWeights& weights,
                                        int threads, const std::string& isa, WeightKind cache,
                                        std::shared_ptr<cpu::Collective> collective,
                                        bool detect_overflow);
std::unique_ptr<Runner> make_cuda_runner(const ModelSpec& spec, const ModelWeights& weights,
                                         WeightKind kind, WeightKind cache, int device,
                                         std::shared_ptr<cuda::Collective> collective,
                                         bool deterministic, bool detect_overflow);

}  // namespace decoding
