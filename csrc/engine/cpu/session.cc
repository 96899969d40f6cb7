// The session on the CPU: every method's work runs on all threads of a team.
#include "engine/session.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "engine/cpu/inputs.h"
#include "engine/cpu/select.h"
#include "engine/cpu/workspace.h"
#include "engine/search/faults.h"
#include "engine/search/results.h"
#include "engine/search/state.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/split_stream.h"

namespace decoding {
namespace {

// T: of activations; C: of the keys and values that are kept.
template <typename T, typename C, cpu::Isa isa>
class CpuSession : public Session {
 public:
  CpuSession(const ModelSpec& spec, const ModelWeights& weights, int threads,
             cpu::Features features, std::shared_ptr<cpu::Collective> collective,
             bool detect_overflow)
      : spec_(spec),
        weights_(weights),
        team_(threads, collective == nullptr),
        features_(features),
        collective_(std::move(collective)) {
    check_split<T>(spec, collective_.get());
    if (detect_overflow) overflow_ = OverflowMemory<std::vector<std::byte>>(spec);
  }

  Arena plan(const Limits& limits) const override {
    Arena arena;
    ShortlistMemory shortlist;
    take(arena, limits, shortlist);
    return arena;
  }

  void bind(const Limits& limits, void* pool, size_t bytes) override {
    started_ = false;
    Arena arena(pool, bytes);
    memory_ = take(arena, limits, shortlist_);
    limits_ = limits;
    overflow_.bind(pages_of(spec_, limits) * kPageSize, overflow_sentences(limits));
    memory_.w.overflow = overflow_.view();
  }

  void start(const Batch& batch, Request request) override {
    started_ = false;
    request_ = std::move(request);
    search_config_ = request_.search_config();
    CHECK(w_.logits != nullptr, "start() needs a bind() before it");
    check_fits(batch, request_, spec_, limits_);
    CHECK(!collective_ || (batch.shortlist == nullptr && limits_.attentions == 0),
          "a model that is split has no shortlists, and keeps no attention");
    fill_inputs(w_.inputs, batch, request_, spec_, limits_);
    overflow_.forget(0, limits_.batch);
    choice_ = make_choice(shortlisted(weights_.output, batch, shortlist_), request_);
    if (const auto* constrained = std::get_if<Constrained>(&request_.search)) {
      begin_phrases(w_.phrases, constrained->phrases, batch, request_.rows_per_sentence, limits_);
    }
    longest_source_ = longest_source(batch);
    key_ = step_key(request_, request_.sentences(), SelectPart::candidates);
    run([&](auto& stream) {
      gather_shortlist(stream, weights_.output, choice_.outputs, shortlist_);
      read(pass(stream), batch, request_.rows_per_sentence);
    });
    started_ = true;
  }

  bool step(int steps) override {
    CHECK(started_, "step() needs a start() before it");
    const int first = w_.inputs.state->number;
    const int last = std::min(first + steps - 1, request_.steps());
    run([&](auto& stream) {
      for (int number = first; number <= last && goes_on(); ++number) {
        const StepView step = this->step();
        if (!collective_ && takes_best(spec_, choice_, w_, step)) {
          const Norm norm = decoder_layers(pass(stream), step_rows(stream, step));
          select_best(stream, choice_, norm, w_, step);
        } else {
          compute(stream, step);
          if (step.key.processed) process_scores(stream, w_, step, kAllStages);
          decoding::select(stream, w_, step);
        }
        decoding::update(stream, w_, step, nullptr);
      }
    });
    return check_done();
  }

  void compute() override {
    CHECK(started_, "compute() needs a start() before it");
    run([&](auto& stream) { compute(stream, step()); });
  }

  void process_logits(int stages) override {
    CHECK(key_.processed, "process_logits() needs a request that is processed");
    run([&](auto& stream) { process_scores(stream, w_, step(), stages); });
  }

  void select() override {
    run([&](auto& stream) { decoding::select(stream, w_, step()); });
  }

  bool update(const uint8_t* ended) override {
    const StepView step = this->step();  // before a thread changes what it is made from
    run([&](auto& stream) { decoding::update(stream, w_, step, ended); });
    return check_done();
  }

  void stop_now() override { std::fill_n(w_.inputs.stop_now, limits_.batch, 1); }

  EngineState state() override {
    CHECK(started_, "state() needs a start() before it");
    return engine_state(w_, *w_.inputs.state, key_, request_, memory_.scratch, spec_, limits_,
                        longest_source_);
  }

  void fetch(const Results& results) const override {
    CHECK(started_, "fetch() needs a start() before it");
    const int steps = w_.inputs.state->number - 1;
    fetch_results({w_.tokens, w_.parents, limits_.rows()}, w_.finished, w_.inputs.length, steps,
                  request_, results);
  }

  void score(const Labelled& labelled, LabelScore* found, float* attentions) override {
    started_ = false;
    CHECK(w_.logits != nullptr, "score() needs a bind() before it");
    check_labelled(labelled, spec_, limits_);
    check_kept(w_.inputs, attentions);
    CHECK(!collective_ || attentions == nullptr, "a model that is split keeps no attention");
    fill_labelled(w_.inputs, labelled, spec_, limits_);
    run([&](auto& stream) { decoding::score(pass(stream), labelled); });
    if (found != nullptr) std::copy_n(w_.label_scores, labelled.tokens(), found);
    if (attentions == nullptr) return;
    const int width = longest_source(labelled.source);
    for (int token = 0; token < labelled.tokens(); ++token) {
      const ActiveSentence& of = w_.inputs.forced_active[token];
      const int64_t row = int64_t{of.number - 1} * limits_.rows() + of.id;
      std::copy_n(w_.attentions + row * limits_.source, width, attentions + int64_t{token} * width);
    }
  }

  std::vector<TensorOverflow> overflow() const override { return overflow_.found(); }
  std::string first_overflow(int sentence) const override {
    return first_overflow_of_labels(overflow_, w_.inputs, sentence, spec_, limits_);
  }

 private:
  CpuMemory<T, C> take(Arena& arena, const Limits& limits, ShortlistMemory& shortlist) const {
    return CpuMemory<T, C>(arena, spec_, limits, team_.size(), [&] {
      shortlist = ShortlistMemory(arena, limits, weights_.output.weight);
    });
  }

  template <typename Work>
  void run(Work&& work) {
    team_.run([&](int rank) {
      cpu::SplitStream<isa> stream(team_, rank, features_, collective_.get());
      work(stream);
    });
    if (collective_) collective_->check();
  }

  bool goes_on() const {
    return w_.inputs.state->active_count > 0 && !(collective_ && collective_->is_broken());
  }

  StepView step() const {
    StepView view = {.search = &request_.search,
                     .config = {&search_config_, request_.configs.data(), request_.words.data()},
                     .scratch = memory_.scratch,
                     .key = key_,
                     .total_rows = limits_.rows(),
                     .vocab = spec_.decoder.vocab};
    view.key.sentences = w_.inputs.state->active_count;
    return view;
  }

  StepRows step_rows(cpu::SplitStream<isa>& stream, const StepView& step) {
    return decoding::step_rows(pass(stream), step.key.sentences, step.key.beams, step.key.guided);
  }

  Pass<cpu::SplitStream<isa>, T, C> pass(cpu::SplitStream<isa>& stream) const {
    return {stream, spec_, weights_, w_, memory_.cache, limits_};
  }

  void compute(cpu::SplitStream<isa>& stream, const StepView& step) {
    const StepRows rows = step_rows(stream, step);
    const Norm norm = decoder_layers(pass(stream), rows);
    project_logits(stream, spec_, choice_, shortlist_, norm, w_, rows.total());
    if (is_contrastive(request_.search)) keep_hidden(pass(stream), rows);
  }

  // Whether no sentence is left.
  bool check_done() {
    const int32_t* fault = w_.inputs.fault;
    started_ = std::all_of(fault, fault + request_.sentences(), [](int32_t f) { return f == 0; });
    check_faults(fault, w_.inputs.sentence_ids, request_.sentences(), [&](int b) {
      return decoding::first_overflow(overflow_, w_.inputs, b, key_.guided, spec_, limits_);
    });
    return w_.inputs.state->active_count == 0;
  }

  const ModelSpec spec_;
  const ModelWeights weights_;
  cpu::Team team_;
  const cpu::Features features_;
  const std::shared_ptr<cpu::Collective> collective_;
  Limits limits_{};
  CpuMemory<T, C> memory_{};
  const Workspace<T>& w_ = memory_.w;
  ShortlistMemory shortlist_{};
  OverflowMemory<std::vector<std::byte>> overflow_;
  Request request_;
  SearchConfig search_config_;
  StepKey key_{};
  Choice choice_;
  int longest_source_ = 0;
  bool started_ = false;
};

}  // namespace

std::unique_ptr<Session> make_cpu_session(const ModelSpec& spec, const ModelWeights& weights,
                                          int threads, const std::string& isa, WeightKind cache,
                                          std::shared_ptr<cpu::Collective> collective,
                                          bool detect_overflow) {
  const auto make = [&]<typename C>() {
    return cpu::with_isa(isa,
                         [&]<cpu::Isa chosen>(cpu::Features features) -> std::unique_ptr<Session> {
                           return std::make_unique<CpuSession<float, C, chosen>>(
                               spec, weights, threads, features, collective, detect_overflow);
                         });
  };
  if (cache == WeightKind::float32) return make.template operator()<float>();
  CHECK(cache == WeightKind::bfloat16, "keys and values must be float32 or bfloat16 on the CPU");
  return make.template operator()<BFloat16>();
}

}  // namespace decoding
