// The session on the CPU: every method's work runs on all threads of a team.
#include <algorithm>
#include <numeric>

#include "engine/decoder.h"
#include "engine/encoder.h"
#include "engine/results.h"
#include "engine/session.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/stream.h"

namespace decoding {
namespace {

template <typename T, cpu::Isa isa>
class CpuSession : public Session {
 public:
  CpuSession(const ModelSpec& spec, const ModelWeights& weights, int threads)
      : spec_(spec), weights_(weights), team_(threads) {}

  Arena plan(const Limits& limits) const override {
    Arena arena;
    Workspace<T>(arena, spec_, limits, team_.size());
    return arena;
  }

  void bind(const Limits& limits, void* pool, size_t bytes) override {
    started_ = false;
    Arena arena(pool, bytes);
    w_ = Workspace<T>(arena, spec_, limits, team_.size());
    limits_ = limits;
  }

  void start(const Batch& batch, const Rules& rules, const Search& search) override {
    started_ = false;
    rules_ = rules;
    search_ = search;
    sentences_ = batch.sentences;
    beams_ = batch.beams;
    steps_ = 0;
    CHECK(w_.logits != nullptr, "start() needs a bind() before it");
    check_fits(batch, rules_, search_, spec_, limits_);
    fill_inputs(batch);
    fill_search_state();
    const int tokens =
        spec_.encoder ? w_.source_offsets[sentences_] : w_.prompt_offsets[sentences_];
    run([&](auto& stream) {
      if (spec_.encoder) {
        encode(stream, spec_, weights_, w_, sentences_, tokens, limits_.batch * limits_.source);
        read_prefix(stream, batch.prompt);
      } else if (tokens > 0) {
        read_prompt(stream, spec_, weights_, w_, sentences_, tokens,
                    limits_.batch * (limits_.prompt - 1));
      }
    });
    started_ = true;
  }

  bool step(int steps) override {
    CHECK(started_, "step() needs a start() before it");
    const int before = steps_, left = rules_.max_new - steps_;
    steps = std::min(steps, left);
    Workspace<T> last = w_;
    run([&](auto& stream) {
      Workspace<T> w = w_;  // each thread swaps its own slots and next_slots
      for (int i = 0; i < steps && one_step(stream, w, before + i); ++i) {
        if (std::holds_alternative<Beam>(search_)) std::swap(w.slots, w.next_slots);
        if (stream.rank() == 0) {
          last = w;
          steps_ = before + i + 1;
        }
      }
    });
    w_ = last;
    for (int b = 0; b < sentences_; ++b) {
      if (w_.fault[b] != 0) fail_at(b);
    }
    return std::all_of(w_.done, w_.done + sentences_, [](int32_t done) { return done != 0; });
  }

  void take(const Results& results) const override {
    CHECK(started_, "take() needs a start() before it");
    CHECK(results.width >= steps_, "results need ", steps_, " columns, got ", results.width);
    const Trellis trellis{w_.tokens, w_.parents, limits_.rows()};
    if (std::holds_alternative<Beam>(search_)) {
      take_finished(trellis, w_.finished, sentences_, beams_, results);
    } else {
      take_rows(trellis, w_.length, steps_, sentences_, beams_, results);
    }
  }

 private:
  template <typename Work>
  void run(Work&& work) {
    team_.run([&](int rank) {
      cpu::Stream<isa> stream(team_, rank);
      work(stream);
    });
  }

  void fill_inputs(const Batch& batch) {
    const int32_t* given = batch.prompt_offsets;
    w_.prompt_offsets[0] = 0;
    for (int b = 0; b < sentences_; ++b) {
      const int read = given[b + 1] - given[b] - 1;  // the last token is the first step's
      w_.prompt_offsets[b + 1] = w_.prompt_offsets[b] + read;
      std::copy_n(batch.prompt + given[b], read, w_.prompt_ids + w_.prompt_offsets[b]);
      std::fill_n(w_.prompt_last + b * beams_, beams_, batch.prompt[given[b + 1] - 1]);
      w_.first[b] = read;
      if (!spec_.encoder)
        std::iota(w_.packed.at + w_.prompt_offsets[b], w_.packed.at + w_.prompt_offsets[b + 1], 0);
    }
    if (spec_.encoder) {
      const int tokens = batch.source_offsets[sentences_];
      std::copy_n(batch.source_offsets, sentences_ + 1, w_.source_offsets);
      std::copy_n(batch.source, tokens, w_.source_ids);
      std::copy_n(batch.source_at, tokens, w_.packed.at);
    }
    std::copy_n(batch.items, sentences_, w_.items);
  }

  void fill_search_state() {
    const int rows = sentences_ * beams_;
    prefix_ = spec_.encoder ? w_.first[0] : 0;
    std::iota(w_.live, w_.live + sentences_, 0);
    *w_.live_count = sentences_;
    for (int b = 0; b < sentences_; ++b) w_.prefix_rows[b] = b * beams_;
    for (int row = 0; row < rows; ++row) {
      int32_t* slots = w_.slots + int64_t{row} * w_.history;
      std::fill_n(slots, w_.history, row);
      std::fill_n(slots, prefix_, row / beams_ * beams_);  // a prompt is held by the first row
      w_.sums[row] = row % beams_ == 0 ? 0.0f : -1e9f;
      w_.length[row] = 0;
    }
    for (int b = 0; b < sentences_; ++b) {
      w_.finished_count[b] = w_.done[b] = w_.fault[b] = 0;
    }
  }

  // The prompt of an encoder-decoder, token by token, read once per sentence.
  void read_prefix(cpu::Stream<isa>& stream, const int32_t* prompt) {
    for (int position = 0; position < prefix_; ++position) {
      const auto [begin, end] = stream.share(sentences_);
      for (int b = begin; b < end; ++b) {
        w_.ids[b] = prompt[b * (prefix_ + 1) + position];
        w_.step.at[b] = position;
      }
      stream.barrier();
      decoder_layers(stream, spec_, weights_, w_, limits_,
                     {.live = w_.live,
                      .slot_live = w_.prefix_rows,
                      .count = sentences_,
                      .beams = 1,
                      .position = position});
    }
  }

  // False when no sentence is alive. done: tokens generated before.
  bool one_step(cpu::Stream<isa>& stream, Workspace<T>& w, int done) {
    const int slots = limits_.rows();
    gather_live(stream, {.done = w.done,
                         .first = w.first,
                         .last = done == 0 ? w.prompt_last : w.tokens + int64_t{done - 1} * slots,
                         .items = w.items,
                         .live = w.live,
                         .live_count = w.live_count,
                         .ids = w.ids,
                         .at = w.step.at,
                         .random_row = w.random_row,
                         .beams = beams_,
                         .steps = done});
    const int count = *w.live_count;
    if (count == 0) return false;
    const Step step{.rules = rules_,
                    .live_count = count,
                    .beams = beams_,
                    .slots = slots,
                    .vocab = spec_.decoder.vocab,
                    .number = done + 1,
                    .position = prefix_ + done};
    decoder_layers(stream, spec_, weights_, w, limits_,
                   {.live = w.live,
                    .slot_live = w.live,
                    .count = count,
                    .beams = beams_,
                    .position = step.position});
    output_logits(stream, spec_, weights_, w, step.rows());
    apply_rules(stream, w, step);
    std::visit([&](const auto& search) { choose_tokens(stream, search, w, step); }, search_);
    return true;
  }

  [[noreturn]] void fail_at(int b) {
    started_ = false;
    const int step = std::abs(w_.fault[b]);
    if (w_.fault[b] > 0) {
      throw Error("the model's logits are not finite (NaN or infinite) for item " +
                  std::to_string(w_.items[b]) + " at step " + std::to_string(step));
    }
    throw Error("every token is banned for item " + std::to_string(w_.items[b]) + " at step " +
                std::to_string(step) + ": there is nothing to sample");
  }

  const ModelSpec spec_;
  const ModelWeights weights_;
  cpu::Team team_;
  Limits limits_{};
  Workspace<T> w_{};
  Rules rules_{};
  Search search_;
  int sentences_ = 0, beams_ = 0, steps_ = 0;
  int prefix_ = 0;  // tokens of an encoder-decoder's prompt that come before the first step's
  bool started_ = false;
};

}  // namespace

std::unique_ptr<Session> make_cpu_session(const ModelSpec& spec, const ModelWeights& weights,
                                          int threads, const std::string& isa) {
  return cpu::with_isa(isa, [&]<cpu::Isa chosen>() -> std::unique_ptr<Session> {
    return std::make_unique<CpuSession<float, chosen>>(spec, weights, threads);
  });
}

}  // namespace decoding
