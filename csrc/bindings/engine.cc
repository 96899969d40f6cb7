// decoding._C.Engine: a scheduler with its runner.
#include "bindings/engine.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bound.h"
#include "bindings/collective.h"
#include "bindings/model.h"
#include "bindings/request.h"
#include "bindings/token_ids.h"
#include "bindings/unlocked.h"
#include "engine/scheduler/follower.h"
#include "engine/scheduler/leader.h"
#include "engine/scheduler/scheduler.h"

namespace decoding {
namespace {

constexpr int kMostWaiting = 1 << 20;  // requests
constexpr int kFewTexts = 16;

// One sentence of a batch, as a batch.
struct OneText {
  int32_t source_offsets[2] = {0, 0}, prompt_offsets[2] = {0, 0};
  Batch batch;

  OneText(const Batch& all, int b) : batch(all) {
    const auto narrow = [b](const int32_t*& ids, const int32_t*& offsets, int32_t (&own)[2]) {
      ids += offsets[b];
      own[1] = offsets[b + 1] - offsets[b];
      offsets = own;
    };
    if (all.source != nullptr) {
      batch.source_positions += all.source_offsets[b];
      narrow(batch.source, batch.source_offsets, source_offsets);
    }
    narrow(batch.prompt, batch.prompt_offsets, prompt_offsets);
    batch.sentence_ids += b;
    batch.sentences = 1;
  }
};

// A sentence without masked tokens, as a batch.
struct PlainText {
  Ids source, source_positions, prompt;
  int32_t source_offsets[2], prompt_offsets[2], sentence = 0;

  PlainText(const std::optional<TokenIds>& source_ids, const TokenIds& prompt_ids)
      : prompt(numbers(prompt_ids)) {
    if (source_ids) source = numbers(*source_ids);
    source_positions.resize(source.size());
    std::iota(source_positions.begin(), source_positions.end(), 0);
    put_offsets(source, source_offsets);
    put_offsets(prompt, prompt_offsets);
  }

  Batch batch() const {
    const bool is_read = !source.empty();
    return {.source = is_read ? source.data() : nullptr,
            .source_positions = is_read ? source_positions.data() : nullptr,
            .source_offsets = is_read ? source_offsets : nullptr,
            .prompt = prompt.data(),
            .prompt_offsets = prompt_offsets,
            .sentence_ids = &sentence,
            .shortlist = nullptr,
            .sentences = 1};
  }

 private:
  static Ids numbers(const TokenIds& ids) { return {ids.data(), ids.data() + ids.size()}; }
  static void put_offsets(const Ids& ids, int32_t (&to)[2]) {
    to[0] = 0;
    to[1] = static_cast<int32_t>(ids.size());
  }
};

class PyEngine {
 public:
  PyEngine(const py::object& spec, py::dict weights, int threads, const std::string& isa,
           const std::string& cache, std::shared_ptr<cpu::Collective> collective,
           bool detect_overflow)
      : device_("cpu"), spec_(model_spec(spec)), weights_(std::move(weights)), ranks_(collective) {
    CHECK(cache == "float32" || cache == "bfloat16", "cache must be float32 or bfloat16, got ",
          cache);
    model_ = load_weights(weight_table(weights_, device_, std::nullopt), spec_);
    runner_ = make_cpu_runner(spec_, model_, threads, isa,
                              cache == "float32" ? WeightKind::float32 : WeightKind::bfloat16,
                              std::move(collective), detect_overflow);
  }

  // On a GPU, in the type of the decoder's token table.
  PyEngine([[maybe_unused]] const py::object& spec, py::dict weights, int device,
           [[maybe_unused]] const std::string& cache,
           [[maybe_unused]] std::shared_ptr<CudaCollective> collective,
           [[maybe_unused]] bool deterministic, [[maybe_unused]] bool detect_overflow)
      : device_("cuda:" + std::to_string(device)),
        spec_(model_spec(spec)),
        weights_(std::move(weights)) {
#ifdef DECODING_CUDA
    const WeightKind kind = kind_on_gpu(weights_, device_, "decoder.embed.tokens");
    model_ = load_weights(weight_table(weights_, device_, kind), spec_);
    if (collective) ranks_ = collective->ranks();
    runner_ = make_cuda_runner(spec_, model_, kind, cache_kind_on_gpu(cache, kind), device,
                               std::move(collective), deterministic, detect_overflow);
#else
    throw Error("this engine was built without CUDA");
#endif
  }

  std::pair<std::vector<Buffer>, size_t> plan(const RunnerLimits& limits) const {
    const Arena arena = runner_->plan(limits);
    return {arena.buffers(), arena.bytes()};
  }

  void bind(const RunnerLimits& limits, const py::object& pool, bool prefix_caching,
            bool overcommit) {
    scheduler_.reset();
    follower_.reset();
    const auto view = TensorView::of(pool, "pool", device_);
    const int64_t page_bytes = bytes_of_page(runner_->plan(limits));
    runner_->bind(limits, view.data<uint8_t>({-1}), view.numel());
    pool_ = pool;
    limits_ = limits;
    if (ranks_ != nullptr && ranks_->rank() > 0) {
      follower_ = std::make_unique<Follower>(*runner_, *ranks_);
      return;
    }
    if (ranks_ != nullptr) {
      leader_ = std::make_unique<Leader>(*runner_, *ranks_, spec_.decoder.vocab);
    }
    Runner& runner = leader_ ? *leader_ : *runner_;
    scheduler_ = std::make_unique<Scheduler>(runner, limits, spec_, page_bytes, kMostWaiting,
                                             prefix_caching, overcommit);
  }

  bool follow(double timeout) {
    CHECK(follower_ != nullptr, "rank 0 follows nobody");
    return follower_->wait(timeout);
  }

  int64_t submit(const PyRequest& request, const PyBatch& batch, int32_t priority, double deadline,
                 double max_time, bool stream, uint64_t salt, bool together) {
    const Request options = request.on(device_);
    const Batch texts = batch.view();
    CHECK(texts.sentences == options.sentences(), "there must be ", options.sentences(),
          " prompts, got ", texts.sentences);
    // For few texts it is kept: to get it back from busy threads takes longer than all of this.
    std::optional<Unlocked> release;
    if (texts.sentences > kFewTexts) release.emplace();
    std::vector<Submission> submissions;
    submissions.reserve(texts.sentences);
    for (int b = 0; b < texts.sentences; ++b) {
      const OneText text(texts, b);
      submissions.push_back(submission(sentence_of(options, b), text.batch, priority, deadline,
                                       max_time, stream, salt));
    }
    return scheduler().submit(std::move(submissions), together);
  }

  // One sentence without masked tokens; source: none without an encoder.
  int64_t submit_plain(const PyRequest& request, const std::optional<TokenIds>& source,
                       const TokenIds& prompt, int32_t priority, double deadline, double max_time,
                       bool stream, uint64_t salt) {
    const PlainText text(source, prompt);
    std::vector<Submission> submissions;
    submissions.push_back(
        submission(request.on(device_), text.batch(), priority, deadline, max_time, stream, salt));
    return scheduler().submit(std::move(submissions));
  }

  void cancel(int64_t id) { scheduler().cancel(id); }
  py::list wait(double timeout) { return told_by(scheduler(), timeout); }
  void close(bool drain) {
    if (follower_) return follower_->close();
    scheduler().close(drain);
  }

  Overflow overflow() const { return as_tuples(runner_->overflow()); }

  py::dict stats() {
    const SchedulerStats stats = scheduler().stats();
    py::dict seconds, found;
    seconds["scheduling"] = stats.scheduling;
    seconds["reading"] = stats.reading;
    seconds["stepping"] = stats.stepping;
    found["running"] = stats.running;
    found["waiting"] = stats.waiting;
    found["pages_used"] = stats.pages_used;
    found["pages_total"] = stats.pages_total;
    found["steps"] = stats.steps;
    found["tokens"] = stats.tokens;
    found["iterations"] = py::cast(stats.iterations.counts);
    found["iteration_tokens"] = stats.iterations.sum;
    found["prefix_queries"] = stats.cache.queries;
    found["prefix_hits"] = stats.cache.hits;
    found["swapped"] = stats.overcommit.swapped;
    found["swaps"] = stats.overcommit.swaps;
    found["swapped_bytes"] = stats.overcommit.bytes;
    found["seconds"] = seconds;
    return found;
  }

 private:
  Scheduler& scheduler() {
    CHECK(follower_ == nullptr, "rank 0 takes the requests of all ranks");
    CHECK(scheduler_ != nullptr, "an engine must be bound before it is used");
    return *scheduler_;
  }

  Submission submission(Request request, const Batch& text, int32_t priority, double deadline,
                        double max_time, bool stream, uint64_t salt) const {
    return {.request = read(std::move(request), text),
            .priority = priority,
            .seconds = deadline,
            .max_time = max_time,
            .streams = stream,
            .salt = salt,
            .item = text.sentence_ids[0]};
  }

  // A sentence's request and its texts, checked.
  RunnerRequest read(Request request, const Batch& batch) const {
    CHECK(!request.is_guided() && !is_contrastive(request.search) &&
              !std::holds_alternative<Constrained>(request.search),
          "guidance, contrastive and constrained search run in generate() alone");
    check_fits(batch, request, spec_, one_of(limits_));
    CHECK(request.words.size() <= static_cast<size_t>(limits_.words), "the lists of the request ",
          "have ", request.words.size(), " ids, the engine has room for ", limits_.words);
    RunnerRequest read;
    read.request = std::move(request);
    read.prompt.assign(batch.prompt, batch.prompt + batch.prompt_offsets[1]);
    if (spec_.encoder) {
      const int tokens = batch.source_offsets[1];
      read.source.assign(batch.source, batch.source + tokens);
      read.source_positions.assign(batch.source_positions, batch.source_positions + tokens);
    }
    return read;
  }

  // Of keys and values, in all layers.
  static int64_t bytes_of_page(const Arena& plan) {
    const std::set<std::string> kept{"k_pages", "v_pages", "k_scales", "v_scales"};
    int64_t bytes = 0;
    for (const Buffer& buffer : plan.buffers()) {
      if (kept.contains(buffer.name)) {
        bytes += static_cast<int64_t>(buffer.bytes) / buffer.shape[1];
      }
    }
    return bytes;
  }

  // What one request may be.
  static Limits one_of(const RunnerLimits& limits) {
    return {.batch = 1,
            .beams = limits.beams,
            .source = limits.source,
            .prompt = limits.prompt,
            .target = limits.target,
            .candidates = limits.candidates,
            .finished = limits.rows,
            .controls = limits.words};
  }

  const std::string device_;
  const ModelSpec spec_;
  const py::dict weights_;
  ModelWeights model_;
  py::object pool_;
  RunnerLimits limits_{};
  std::shared_ptr<Ranks> ranks_;  // null where the model is whole
  std::unique_ptr<Runner> runner_;
  // Where the runner is bound, the first to go: rank 0's, which leads the others, or one of theirs.
  std::unique_ptr<Leader> leader_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Follower> follower_;
};

RunnerLimits runner_limits(int requests, int beams, int source, int prompt, int target, int pages,
                           int tokens, int candidates, int words, int classes) {
  CHECK(requests > 0 && beams > 0 && source >= 0 && prompt > 0 && target > 0 && pages > 0 &&
            tokens >= source && tokens > 0 && candidates > 0 && words >= 0 && classes > 0,
        "limits must be positive");
  return {.rows = requests,
          .pages = pages,
          .tokens = tokens,
          .classes = classes,
          .words = words,
          .beams = beams,
          .source = source,
          .prompt = prompt,
          .target = target,
          .candidates = candidates};
}

}  // namespace

void bind_engine(py::module_& module) {
  py::class_<RunnerLimits>(module, "EngineLimits")
      .def(py::init(&runner_limits), py::kw_only(), py::arg("requests"), py::arg("beams"),
           py::arg("source"), py::arg("prompt"), py::arg("target"), py::arg("pages"),
           py::arg("tokens"), py::arg("candidates"), py::arg("words"), py::arg("classes"));
  module.def("plain_ids", &plain_ids, py::arg("given"), py::kw_only(), py::arg("vocab"),
             py::arg("without") = -1);
  bind_output(module);
  const py::call_guard<Unlocked> unlocked;  // of Python's lock
  py::class_<PyEngine>(module, "Engine")
      .def(py::init<const py::object&, py::dict, int, const std::string&, const std::string&,
                    std::shared_ptr<cpu::Collective>, bool>(),
           py::arg("spec"), py::arg("weights"), py::kw_only(), py::arg("threads"), py::arg("isa"),
           py::arg("cache") = "float32", py::arg("collective") = py::none(),
           py::arg("detect_overflow") = false)
      .def(py::init<const py::object&, py::dict, int, const std::string&,
                    std::shared_ptr<CudaCollective>, bool, bool>(),
           py::arg("spec"), py::arg("weights"), py::kw_only(), py::arg("device"),
           py::arg("cache") = "", py::arg("collective") = py::none(),
           py::arg("deterministic") = false, py::arg("detect_overflow") = false)
      .def("plan", &PyEngine::plan, py::arg("limits"))
      .def("bind", &PyEngine::bind, py::arg("limits"), py::arg("pool"), py::kw_only(),
           py::arg("prefix_caching") = true, py::arg("overcommit") = false)
      .def("submit", &PyEngine::submit, py::arg("request"), py::arg("batch"), py::kw_only(),
           py::arg("priority") = 0, py::arg("deadline") = kNever, py::arg("max_time") = kNever,
           py::arg("stream") = false, py::arg("salt") = 0, py::arg("together") = false)
      .def("submit", &PyEngine::submit_plain, py::arg("request"), py::arg("source"),
           py::arg("prompt"), py::kw_only(), py::arg("priority") = 0, py::arg("deadline") = kNever,
           py::arg("max_time") = kNever, py::arg("stream") = false, py::arg("salt") = 0)
      .def("cancel", &PyEngine::cancel, py::arg("id"), unlocked)
      .def("wait", &PyEngine::wait, py::arg("timeout"))
      .def("follow", &PyEngine::follow, py::arg("timeout"), unlocked)
      .def("stats", &PyEngine::stats)
      .def("overflow", &PyEngine::overflow)
      .def("close", &PyEngine::close, py::arg("drain"), unlocked);
}

}  // namespace decoding
