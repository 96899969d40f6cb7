// decoding._kernels: the kernels from logits to tokens, one function each, with scratch of their
// own. Results are new tensors; what a kernel keeps from step to step is passed in and changed.
#include <pybind11/stl.h>

#include <array>
#include <utility>
#include <vector>

#include "bindings/tensor.h"
#include "bindings/testing/kernels.h"
#include "core/philox.h"
#include "kernels/search/logits.h"
#include "kernels/search/sampling.h"
#include "kernels/search/topk.h"
#include "kernels/search/update.h"

namespace decoding {
namespace {

// A new tensor, and the view of it.
struct Made {
  py::object tensor;
  TensorView view;
};

Made make(const char* dtype, std::vector<int64_t> shape) {
  const py::module_ torch = py::module_::import("torch");
  py::object tensor = torch.attr("empty")(std::move(shape), py::arg("dtype") = torch.attr(dtype));
  TensorView view = TensorView::of(tensor, "result");
  return {std::move(tensor), std::move(view)};
}

// Logits [rows, V] and what scan_logits makes of them.
struct Scanned {
  Scanned(const py::object& tensor, const std::string& isa, int threads)
      : view(TensorView::of(tensor, "logits")),
        logits(view.data<float>({-1, -1})),
        rows(static_cast<int>(view.size(0))),
        vocab(static_cast<int>(view.size(1))),
        group_max(make("float32", {rows, groups_of(vocab)})),
        group_sum(make("float32", {rows, groups_of(vocab)})),
        lse(make("float32", {rows})),
        queue(int64_t{threads} * vocab),
        maxima(int64_t{threads} * groups_of(vocab)) {
    const ScanLogitsParams<float> params{.logits = logits,
                                         .group_max = group_max.view.data<float>(),
                                         .group_sum = group_sum.view.data<float>(),
                                         .lse = lse.view.data<float>(),
                                         .rows = rows,
                                         .vocab = vocab};
    on_cpu(isa, threads, [&](auto& stream) { scan_logits<float>(stream, params); });
  }

  py::tuple results() const {
    return py::make_tuple(group_max.tensor, group_sum.tensor, lse.tensor);
  }

  TensorView view;
  float* logits;
  int rows, vocab;
  Made group_max, group_sum, lse;
  std::vector<Candidate> queue;  // [threads, V]
  std::vector<float> maxima;     // [threads, G]
};

py::tuple as_tensors(const std::vector<Candidate>& candidates, std::vector<int64_t> shape) {
  const Made values = make("float32", shape), ids = make("int32", shape);
  for (size_t i = 0; i < candidates.size(); ++i) {
    values.view.data<float>()[i] = candidates[i].value;
    ids.view.data<int32_t>()[i] = candidates[i].id;
  }
  return py::make_tuple(values.tensor, ids.tensor);
}

std::vector<Candidate> as_candidates(const TensorView& values, const TensorView& ids) {
  std::vector<Candidate> candidates(values.numel());
  const float* value = values.data<float>();
  const int32_t* id = ids.data<int32_t>(values.shape());
  for (size_t i = 0; i < candidates.size(); ++i) candidates[i] = {value[i], id[i]};
  return candidates;
}

void check_ids(const std::vector<int32_t>& ids, int vocab) {
  for (int32_t id : ids) CHECK(id >= 0 && id < vocab, "id ", id, " is not below ", vocab);
}

py::tuple run_scan_logits(const py::object& logits, const std::string& isa, int threads) {
  return Scanned(logits, isa, threads).results();
}

// Sentences 0, 1, ... at these steps.
std::vector<ActiveSentence> sentences_at(const std::vector<int32_t>& steps) {
  std::vector<ActiveSentence> sentences;
  for (const int32_t step : steps)
    sentences.push_back({static_cast<int>(sentences.size()), step, 0});
  return sentences;
}

// As constrain_logits leaves them. words: ids that config names. steps: of each sentence, of which
// each has as many rows.
py::tuple constrained(const py::object& logits, const std::vector<int32_t>& words,
                      const SentenceConfig& config, const std::string& isa, int threads,
                      const std::vector<int32_t>& steps = {1}) {
  Scanned scanned(logits, isa, threads);
  check_ids(words, scanned.vocab);
  const SearchConfig search;
  const std::vector<ActiveSentence> active = sentences_at(steps);
  const std::vector<SentenceConfig> configs(steps.size(), config);
  const StepState state = {1, static_cast<int>(steps.size())};
  const ConstrainLogitsParams<float> params{.logits = scanned.logits,
                                            .group_max = scanned.group_max.view.data<float>(),
                                            .group_sum = scanned.group_sum.view.data<float>(),
                                            .lse = scanned.lse.view.data<float>(),
                                            .config = {&search, configs.data(), words.data()},
                                            .state = &state,
                                            .active = active.data(),
                                            .beams = scanned.rows / state.active_count,
                                            .vocab = scanned.vocab};
  on_cpu(isa, threads, [&](auto& stream) { constrain_logits<float>(stream, params); });
  return scanned.results();
}

Span all_of(const std::vector<int32_t>& ids) { return {0, static_cast<int32_t>(ids.size())}; }

py::tuple run_ban_tokens(const py::object& logits, const std::vector<int32_t>& ids,
                         const std::string& isa, int threads) {
  SentenceConfig config;
  config.banned = all_of(ids);
  return constrained(logits, ids, config, isa, threads);
}

py::tuple run_renormalize(const py::object& logits, const std::vector<int32_t>& ids,
                          const std::string& isa, int threads) {
  SentenceConfig config;
  config.banned = all_of(ids);
  config.renormalize = 1;
  return constrained(logits, ids, config, isa, threads);
}

py::tuple run_force_tokens(const py::object& logits, const std::vector<int32_t>& ids,
                           const std::string& isa, int threads) {
  SentenceConfig config;
  config.forced_last = all_of(ids);
  return constrained(logits, ids, config, isa, threads);
}

py::tuple run_constrain(const py::object& logits, const std::vector<int32_t>& eos, int min_new,
                        int forced_first, int max_new, const std::vector<int32_t>& steps,
                        const std::string& isa, int threads) {
  SentenceConfig config;
  config.eos = config.forced_last = all_of(eos);
  config.min_new = min_new;
  config.forced_first = forced_first;
  config.max_new = max_new;
  return constrained(logits, eos, config, isa, threads, steps);
}

py::tuple run_topk(const py::object& logits, int k, const std::string& isa, int threads) {
  CHECK(k > 0, "k must be positive, got ", k);
  Scanned scanned(logits, isa, threads);
  std::vector<Candidate> best(int64_t{scanned.rows} * k);
  const TopKParams<float> params{.logits = scanned.logits,
                                 .group_max = scanned.group_max.view.data<float>(),
                                 .best = best.data(),
                                 .queue = scanned.queue.data(),
                                 .maxima = scanned.maxima.data(),
                                 .rows = scanned.rows,
                                 .vocab = scanned.vocab,
                                 .k = k};
  on_cpu(isa, threads, [&](auto& stream) { topk<float>(stream, params); });
  return as_tensors(best, {scanned.rows, k});
}

py::tuple run_sample(const py::object& logits, const py::object& random_row, uint64_t seed,
                     const std::vector<int32_t>& steps, float temperature, int top_k, float top_p,
                     const std::string& isa, int threads) {
  Scanned scanned(logits, isa, threads);
  const TensorView words = TensorView::of(random_row, "random_row");
  SentenceConfig config;
  config.seed = seed;
  config.filters.temperature = temperature;
  config.filters.top_k = top_k;
  config.filters.top_p = top_p;
  const SearchConfig search;
  const std::vector<ActiveSentence> active = sentences_at(steps);
  const std::vector<SentenceConfig> configs(steps.size(), config);
  const StepState state = {1, static_cast<int>(steps.size())};
  std::vector<Candidate> chosen(scanned.rows);
  const SampleParams<float> params{.logits = scanned.logits,
                                   .group_max = scanned.group_max.view.data<float>(),
                                   .random_row = words.data<int32_t>({scanned.rows}),
                                   .active = active.data(),
                                   .config = {&search, configs.data(), nullptr},
                                   .chosen = chosen.data(),
                                   .queue = scanned.queue.data(),
                                   .maxima = scanned.maxima.data(),
                                   .state = &state,
                                   .beams = scanned.rows / state.active_count,
                                   .vocab = scanned.vocab};
  on_cpu(isa, threads, [&](auto& stream) { sample<float>(stream, params); });
  return as_tensors(chosen, {scanned.rows});
}

// state: number and active_count, and active, of the step that ends and then of the next.
py::tuple run_gather_active(const py::object& state, const py::object& done,
                            const py::object& prompt_lengths, const py::object& tokens,
                            const py::object& random_first, const py::object& active,
                            const std::string& isa, int threads) {
  const Tensors in("cpu");
  const TensorView history = TensorView::of(tokens, "tokens");
  const int64_t sentences = TensorView::of(done, "done").size(0), total = history.size(1);
  const int32_t* first_words =
      TensorView::of(random_first, "random_first").data<int32_t>({sentences});
  std::vector<SentenceConfig> configs(sentences);
  for (int b = 0; b < sentences; ++b) configs[b].random_first = first_words[b];
  const Made ids = make("int32", {total}), positions = make("int32", {total});
  const Made random_row = make("int32", {total});
  const GatherActiveParams params{
      .state = step_state(in, state),
      .done = TensorView::of(done, "done").data<int32_t>(),
      .prompt_lengths = TensorView::of(prompt_lengths, "prompt_lengths").data<int32_t>({sentences}),
      .tokens = history.data<int32_t>(),
      .config = {nullptr, configs.data(), nullptr},
      .active = active_sentences(in, active),
      .ids = ids.view.data<int32_t>(),
      .positions = positions.view.data<int32_t>(),
      .random_row = random_row.view.data<int32_t>(),
      .beams = static_cast<int>(total / sentences),
      .total_rows = static_cast<int>(total)};
  on_cpu(isa, threads, [&](auto& stream) { gather_active(stream, params); });
  return py::make_tuple(ids.tensor, positions.tensor, random_row.tensor);
}

void run_reset_cache_indirection(const py::object& cache_indirection, int beams, int prefix,
                                 const std::string& isa, int threads) {
  const Tensors in(py::str(cache_indirection.attr("device")));
  const auto shape = in.sizes(cache_indirection, "cache_indirection", 3);
  const ResetCacheIndirectionParams params{
      .cache_indirection = in.data<int32_t>(cache_indirection, "cache_indirection", {2, -1, -1}),
      .rows = static_cast<int>(shape[1]),
      .beams = beams,
      .history = static_cast<int>(shape[2]),
      .prefix = prefix};
#ifdef DECODING_CUDA
  if (in.on_cuda()) {
    cuda::Stream stream = current_stream(cache_indirection);
    return reset_cache_indirection(stream, params);
  }
#endif
  on_cpu(isa, threads, [&](auto& stream) { reset_cache_indirection(stream, params); });
}

void run_update_rows(const py::object& values, const py::object& ids, const py::object& lse,
                     const py::object& active, const std::vector<int32_t>& eos,
                     const py::dict& state, int pad, int fallback, int max_new,
                     const std::string& isa, int threads) {
  const auto kept = [&](const char* name) { return TensorView::of(state[name], name); };
  const Tensors in("cpu");
  const TensorView length = kept("length");
  const int64_t total = length.size(0), sentences = kept("done").size(0);
  const int active_count = static_cast<int>(in.sizes(active, "active", 2)[0]);
  const int64_t beams = total / sentences, rows = active_count * beams;
  const std::vector<Candidate> chosen =
      as_candidates(TensorView::of(values, "values"), TensorView::of(ids, "ids"));
  SentenceConfig config;
  config.max_new = max_new;
  config.pad = pad;
  config.eos = all_of(eos);
  const std::vector<SentenceConfig> configs(sentences, config);
  const SearchConfig search;
  const std::vector<int32_t> stop_now(sentences);
  const StepState now = {1, active_count};
  const UpdateRowsParams params{.chosen = chosen.data(),
                                .lse = TensorView::of(lse, "lse").data<float>({rows}),
                                .active = active_sentences(in, active),
                                .config = {&search, configs.data(), eos.data()},
                                .stop = {stop_now.data(), nullptr, nullptr},
                                .state = &now,
                                .tokens = kept("tokens").data<int32_t>({-1, total}),
                                .length = length.data<int32_t>(),
                                .done = kept("done").data<int32_t>(),
                                .fault = kept("fault").data<int32_t>({sentences}),
                                .sentences = active_count,
                                .beams = static_cast<int>(beams),
                                .total_rows = static_cast<int>(total),
                                .vocab = 0,  // only of interest with stop strings
                                .fallback = fallback};
  on_cpu(isa, threads, [&](auto& stream) { update_rows(stream, params); });
}

}  // namespace

void bind_search(py::module_& kernels) {
  const py::arg isa("isa"), threads("threads");
  const py::kw_only named;
  kernels.def("philox", &philox, "The four words of a counter.", py::arg("key"),
              py::arg("counter"));
  kernels.def("scan_logits", &run_scan_logits, "(group_max, group_sum, lse) of logits [rows, V].",
              py::arg("logits"), named, isa, threads);
  kernels.def("ban_tokens", &run_ban_tokens, "The same after taking `ids` out of the logits.",
              py::arg("logits"), py::arg("ids"), named, isa, threads);
  kernels.def("force_tokens", &run_force_tokens, "The same after leaving `ids` alone in them.",
              py::arg("logits"), py::arg("ids"), named, isa, threads);
  kernels.def("renormalize", &run_renormalize,
              "The same after taking `ids` out and adding up what is left.", py::arg("logits"),
              py::arg("ids"), named, isa, threads);
  kernels.def("constrain", &run_constrain,
              "The same after the rules of `steps`, one of each sentence; eos are forced last.",
              py::arg("logits"), named, py::arg("eos"), py::arg("min_new"), py::arg("forced_first"),
              py::arg("max_new"), py::arg("steps"), isa, threads);
  kernels.def("topk", &run_topk, "(values, ids), both [rows, k], best first.", py::arg("logits"),
              py::arg("k"), named, isa, threads);
  kernels.def("sample", &run_sample,
              "(logits, ids), both [rows], of the tokens drawn; steps: of each sentence.",
              py::arg("logits"), py::arg("random_row"), named, py::arg("seed"), py::arg("steps"),
              py::arg("temperature") = 1.0f, py::arg("top_k") = 0, py::arg("top_p") = 1.0f, isa,
              threads);
  kernels.def("gather_active", &run_gather_active,
              "(ids, positions, random words); `state` and the head of `active` [n, 3] are kept.",
              py::arg("state"), py::arg("done"), py::arg("prompt_lengths"), py::arg("tokens"),
              py::arg("random_first"), py::arg("active"), named, isa, threads);
  kernels.def("reset_cache_indirection", &run_reset_cache_indirection,
              "cache_indirection: [2, rows, history]", py::arg("cache_indirection"), named,
              py::arg("beams"), py::arg("prefix"), isa, threads);
  kernels.def("update_rows", &run_update_rows, "Takes tokens in; `state` as in update.h.",
              py::arg("values"), py::arg("ids"), py::arg("lse"), py::arg("active"), named,
              py::arg("eos"), py::arg("state"), py::arg("pad"), py::arg("fallback"),
              py::arg("max_new"), isa, threads);
}

}  // namespace decoding
