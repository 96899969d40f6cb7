// The runner on the CPU: every step and every reading is done when its call returns, so the host
// reads and writes the searches' memory between them.
#include "engine/runner.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "engine/cpu/request_class.h"
#include "engine/cpu/select.h"
#include "engine/cpu/workspace.h"
#include "engine/host_pages.h"
#include "engine/model/encoder.h"
#include "engine/packed_parts.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/split_stream.h"
#include "kernels/search/join.h"

namespace decoding {
namespace {

// T: of activations; C: of the keys and values that are kept.
template <typename T, typename C, cpu::Isa isa>
class CpuRunner : public Runner {
  using Stream = cpu::SplitStream<isa>;
  using Parts = std::vector<StepPart<Stream, T, C>>;

 public:
  CpuRunner(const ModelSpec& spec, const ModelWeights& weights, int threads, cpu::Features features,
            std::shared_ptr<cpu::Collective> collective, bool detect_overflow)
      : spec_(spec),
        weights_(weights),
        team_(threads, collective == nullptr),
        features_(features),
        collective_(std::move(collective)) {
    check_split<T>(spec, collective_.get());
    if (detect_overflow) overflow_ = OverflowMemory<std::vector<std::byte>>(spec);
  }

  Arena plan(const RunnerLimits& limits) const override {
    Arena arena;
    std::vector<CpuClass<T>> classes;
    take(arena, limits, classes);
    return arena;
  }

  void bind(const RunnerLimits& limits, void* pool, size_t bytes) override {
    Arena arena(pool, bytes);
    memory_ = take(arena, limits, classes_);
    limits_ = limits;
    host_pages_ = HostPages<std::vector<std::byte>>(memory_.cache.page_bytes());
    const int64_t words = int64_t{limits.rows} * limits.words;
    for (auto& c : classes_) {
      c.words = std::make_unique_for_overwrite<int32_t[]>(words);
      *c.w.inputs.state = {1, 0};  // nothing runs
    }
    bind_overflow(overflow_, memory_.w, classes_, spec_, rows_of(limits));
    stepping_.reserve(limits.classes);
    parts_.resize(team_.size());
    for (Parts& parts : parts_) parts.reserve(limits.classes);
  }

  bool is_synchronous() const override { return true; }

  int open(int request_class, const Request& request) override {
    auto& c = classes_.at(request_class);
    c.open(request, spec_);
    return c.limits.batch;
  }

  void read(std::span<const ReadPart> parts) override {
    const Limits all = rows_of(limits_);
    const PackedParts packed(parts, spec_, shared_pages_of(spec_, all));
    const PackedTokens tokens = packed.place(memory_.w.inputs, spec_, put);
    run([&](Stream& stream) {
      const Pass<Stream, T, C> pass{stream, spec_, weights_, memory_.w, memory_.cache, all};
      read_parts(pass, tokens, packed.whole());
    });
  }

  void join(std::span<const Admitted* const> joining) override {
    for (const Admitted* admitted : joining) place(*admitted);
    run([&](Stream& stream) {
      for (const auto& c : classes_) {
        if (!c.joining.empty()) join_sentences(stream, c.join_params(c.joining.data()));
      }
      for (const Admitted* admitted : joining) read_prefix(stream, *admitted);
    });
    for (auto& c : classes_) c.joining.clear();
  }

  void stop(Slot slot) override {
    classes_[slot.request_class].w.inputs.stop_now[slot.sentence] = 1;
  }

  void extend(std::span<const Extension> extensions) override {
    for (const Extension& extension : extensions) {
      put_own_pages(*extension.admitted, extension.first);
    }
  }

  bool pause(Slot slot) override {
    classes_[slot.request_class].drop(slot.sentence);
    return true;
  }

  void resume(const Admitted& admitted, int steps) override {
    auto& c = classes_[admitted.slot.request_class];
    const int id = admitted.slot.sentence;
    c.add(id, make_choice({weights_.output}, admitted.request->request));
    put_own_pages(admitted, 0);
    const int before = admitted.request->own_before(spec_.encoder.has_value());
    Inputs& in = c.w.inputs;
    in.active[in.state->active_count++] = {id, steps + 1, before + steps};
  }

  void save(std::span<const int32_t> pages, std::span<const int32_t> to) override {
    for (size_t i = 0; i < pages.size(); ++i) {
      host_pages_.each_stretch(
          memory_.cache, pages[i], to[i],
          [](const void* there, void* host, size_t bytes) { std::memcpy(host, there, bytes); });
    }
  }

  void restore(std::span<const int32_t> from, std::span<const int32_t> pages) override {
    for (size_t i = 0; i < pages.size(); ++i) {
      host_pages_.each_stretch(
          memory_.cache, pages[i], from[i],
          [](void* there, const void* host, size_t bytes) { std::memcpy(there, host, bytes); });
    }
  }

  bool step() override {
    lay_out();
    if (stepping_.empty()) return false;
    run([&](Stream& stream) {
      Parts& parts = parts_[stream.rank()];
      parts.clear();
      for (const CpuClass<T>* c : stepping_) {
        fill_rows(stream, c->fill_params());
        parts.push_back({pass(stream, *c), c->rows()});
      }
      const Norm norm = decoder_layers(StepParts<Stream, T, C>(parts));
      choose(stream, norm);
    });
    return true;
  }

  void ended(std::vector<Ended>& to) override {
    for (int i = 0; i < limits_.classes; ++i) {
      auto& c = classes_[i];
      for (int id = 0; id < c.limits.batch; ++id) {
        const int fault = c.w.inputs.fault[id];
        if (c.running[id] == CpuClass<T>::Running::no) continue;
        if (fault == 0 && c.w.inputs.done[id] == 0) continue;
        c.drop(id);
        to.push_back({{i, id}, fault});
      }
    }
  }

  void await_ended(std::span<const Slot> slots) override {
    for (const Slot& slot : slots) classes_[slot.request_class].drop(slot.sentence);
  }

  void fetch(Slot slot, const Results& results) override {
    const auto& c = classes_[slot.request_class];
    fetch_sentence(c.results(), slot.sentence, limits_.target, 0,
                   c.from_first(slot.sentence, results));
  }

  int certain(Slot slot, const Results& results) override {
    const auto& c = classes_[slot.request_class];
    const Inputs& in = c.w.inputs;
    const auto end = in.active + c.active();
    const auto found = std::find_if(in.active, end, [&](const ActiveSentence& sentence) {
      return sentence.id == slot.sentence;
    });
    const int steps = found == end ? 0 : found->number - 1;
    if (steps == 0) return 0;
    return fetch_certain(c.results(), slot.sentence, steps, in.finished_count[slot.sentence],
                         c.from_first(slot.sentence, results));
  }

  std::vector<TensorOverflow> overflow() const override { return overflow_.found(); }
  std::string first_overflow(const Admitted& admitted) const override {
    return overflow_.first(admitted.shared_pages,
                           admitted.request->shared(spec_.encoder.has_value()),
                           classes_[admitted.slot.request_class].place_of(admitted.slot.sentence));
  }

 private:
  CpuMemory<T, C> take(Arena& arena, const RunnerLimits& limits,
                       std::vector<CpuClass<T>>& classes) const {
    const Limits all = rows_of(limits);
    return CpuMemory<T, C>(arena, spec_, all, team_.size(), [&] {
      classes.clear();
      for (int i = 0; i < limits.classes; ++i) {
        arena.prefixed("class " + std::to_string(i) + ": ",
                       [&] { classes.emplace_back(arena, spec_, i, all); });
      }
    });
  }

  static void put(const int32_t* to, const std::vector<int32_t>& numbers) {
    std::copy(numbers.begin(), numbers.end(), const_cast<int32_t*>(to));
  }

  // Puts what a request brings where its class's steps find it.
  void place(const Admitted& admitted) {
    auto& c = classes_[admitted.slot.request_class];
    const Request& request = admitted.request->request;
    const int id = admitted.slot.sentence;
    overflow_.forget(c.place_of(id), 1);
    c.configs[id] = place_config(request, id * limits_.words, c.words.get());
    c.add(id, make_choice({weights_.output}, request));
    c.joining.push_back(joining_sentence(admitted, spec_.encoder.has_value()));
    put_shared_pages(c, admitted);
    put_own_pages(admitted, 0);
  }

  void put_shared_pages(const CpuClass<T>& c, const Admitted& admitted) const {
    const Inputs& in = c.w.inputs;
    const int64_t id = admitted.slot.sentence;
    std::copy(admitted.shared_pages.begin(), admitted.shared_pages.end(),
              in.shared_pages + id * shared_pages_of(spec_, c.limits));
    in.shared_lengths[id] = admitted.request->shared(spec_.encoder.has_value());
  }

  // Those from `first` on.
  void put_own_pages(const Admitted& admitted, int first) const {
    const auto& c = classes_[admitted.slot.request_class];
    std::copy(admitted.own_pages.begin() + first, admitted.own_pages.end(),
              c.w.inputs.self_pages +
                  int64_t{admitted.slot.sentence} * self_pages_of(spec_, c.limits) + first);
  }

  // The decoder's prompt but for its last token, of an encoder-decoder, by the first row.
  void read_prefix(Stream& stream, const Admitted& admitted) const {
    const auto& c = classes_[admitted.slot.request_class];
    const int prefix = admitted.request->own_before(spec_.encoder.has_value());
    const StepState state{0, 1};
    Workspace<T> w = c.w;
    w.step = memory_.w.step;
    const Pass<Stream, T, C> pass{stream, spec_, weights_, w, memory_.cache, c.limits};
    const std::vector<int32_t>& prompt = admitted.request->prompt;
    const RotaryTables tables = rotary_tables(spec_.decoder);
    const int length = static_cast<int>(prompt.size());
    for (int i = 0; i < prefix; ++i) {
      const ActiveSentence active{admitted.slot.sentence, 0, i};
      const int32_t position = tables.pack(i, length);
      const StepRows rows{.state = &state,
                          .ids = &prompt[i],
                          .positions = &position,
                          .active = &active,
                          .sentences = 1,
                          .beams = 1,
                          .slots = c.limits.beams,
                          .first_input = c.first_input()};
      decoder_layers(pass, rows);
    }
  }

  // The classes that step, their rows one after the other.
  void lay_out() {
    stepping_.clear();
    rows_ = 0;
    for (auto& c : classes_) {
      if (c.active() == 0) continue;
      c.lay_out(memory_.w, spec_, rows_, c.active());
      c.step.scratch = memory_.scratch;
      rows_ += c.step.rows();
      stepping_.push_back(&c);
    }
  }

  Pass<Stream, T, C> pass(Stream& stream, const CpuClass<T>& c) const {
    return {stream, spec_, weights_, c.w, memory_.cache, c.limits};
  }

  // Where several classes step, the logits of all rows are made together: the output's weights are
  // read once.
  void choose(Stream& stream, const Norm& norm) const {
    const CpuClass<T>& first = *stepping_.front();
    if (!collective_ && stepping_.size() == 1 &&
        takes_best(spec_, first.choice, first.w, first.step)) {
      select_best(stream, first.choice, norm, first.w, first.step);
      return decoding::update(stream, first.w, first.step, nullptr);
    }
    project_logits(stream, spec_, first.choice, {}, norm, first.w, rows_);
    for (const CpuClass<T>* c : stepping_) {
      if (c->step.key.processed) process_scores(stream, c->w, c->step, kAllStages);
      decoding::select(stream, c->w, c->step);
      decoding::update(stream, c->w, c->step, nullptr);
    }
  }

  template <typename Work>
  void run(Work&& work) {
    team_.run([&](int rank) {
      Stream stream(team_, rank, features_, collective_.get());
      work(stream);
    });
    if (collective_) collective_->check();
  }

  const ModelSpec spec_;
  const ModelWeights& weights_;
  cpu::Team team_;
  const cpu::Features features_;
  const std::shared_ptr<cpu::Collective> collective_;
  RunnerLimits limits_{};
  CpuMemory<T, C> memory_{};
  std::vector<CpuClass<T>> classes_;
  HostPages<std::vector<std::byte>> host_pages_;
  OverflowMemory<std::vector<std::byte>> overflow_;
  std::vector<const CpuClass<T>*> stepping_;
  std::vector<Parts> parts_;  // of the present step, for each thread
  int rows_ = 0;              // of the present step
};

}  // namespace

std::unique_ptr<Runner> make_cpu_runner(const ModelSpec& spec, const ModelWeights& weights,
                                        int threads, const std::string& isa, WeightKind cache,
                                        std::shared_ptr<cpu::Collective> collective,
                                        bool detect_overflow) {
  const auto make = [&]<typename C>() {
    return cpu::with_isa(isa,
                         [&]<cpu::Isa chosen>(cpu::Features features) -> std::unique_ptr<Runner> {
                           return std::make_unique<CpuRunner<float, C, chosen>>(
                               spec, weights, threads, features, collective, detect_overflow);
                         });
  };
  return cache == WeightKind::float32 ? make.template operator()<float>()
                                      : make.template operator()<BFloat16>();
}

}  // namespace decoding
