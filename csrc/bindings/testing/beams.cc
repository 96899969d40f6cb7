// decoding._kernels: the searches in which rows compete, for their tests. See search.cc.
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/tensor.h"
#include "bindings/testing/kernels.h"
#include "bindings/testing/placed.h"
#include "kernels/search/beam.h"
#include "kernels/search/constrained.h"
#include "kernels/search/contrastive.h"
#include "kernels/search/diverse.h"

namespace decoding {
namespace {

using py::object;

// `finished` is int32 [sentences, capacity, 5]: a Hypothesis has five numbers, the first two of
// them floats.
static_assert(sizeof(Hypothesis) == 5 * sizeof(int32_t));
static_assert(sizeof(Candidate) == 2 * sizeof(int32_t));

// An option, or what stands for it.
template <typename T>
T option(const py::dict& options, const char* name, T otherwise) {
  return options.contains(name) ? options[name].cast<T>() : otherwise;
}

// Words: the end tokens, then a forced one.
std::vector<int32_t> words_of(const py::dict& options) {
  auto words = options["eos"].cast<std::vector<int32_t>>();
  words.push_back(0);
  return words;
}

std::vector<SentenceConfig> sentences_of(const py::dict& options, int64_t sentences,
                                         const int32_t* stop_table) {
  using OneOrEach = std::variant<int, std::vector<int>>;
  const auto max_new = options["max_new"].cast<OneOrEach>();
  const auto eos = static_cast<int32_t>(py::len(options["eos"]));
  SentenceConfig config;
  config.pad = option(options, "pad", 0);
  config.forced_first = option(options, "forced_first", false) ? 0 : -1;
  config.alpha = option(options, "alpha", config.alpha);
  config.eos = {0, eos};
  config.stop_table = stop_table;
  config.forced_last = {eos, option(options, "forced_last", false)};
  config.beam = {.length_penalty = option(options, "length_penalty", 1.0),
                 .normalization = option(options, "gnmt", false) ? LengthNormalization::gnmt
                                                                 : LengthNormalization::power,
                 .early_stopping = option(options, "early_stopping", EarlyStopping::no),
                 .sibling_penalty = option(options, "sibling_penalty", 0.0f),
                 .group_penalty = option(options, "group_penalty", 0.0f)};
  std::vector<SentenceConfig> configs(sentences, config);
  for (int64_t b = 0; b < sentences; ++b) {
    const auto* each = std::get_if<std::vector<int>>(&max_new);
    configs[b].max_new = each != nullptr ? each->at(b) : std::get<int>(max_new);
  }
  return configs;
}

// What a step of a search reads and keeps, where its tensors lie. active: [sentences, 3], as in
// step.h; positions must be below the history's. options: eos, state (what the search keeps, see
// beam.h for the shapes), vocab, max_new (of all, or of each sentence); what sentences_of reads;
// groups; stop_table and stop_first, forced_first (whether there is a token of that kind) where
// given.
class SearchStep {
 public:
  SearchStep(const object& lse, const object& active, const py::dict& options)
      : tensors(py::str(active.attr("device"))),
        state(options["state"]),
        sentences(static_cast<int>(tensors.sizes(active, "active", 2)[0])),
        shape_(tensors.sizes(state["cache_indirection"], "cache_indirection", 3)),
        finished_(tensors.sizes(state["finished"], "finished", 3)),
        search_config({.max_finished = static_cast<int>(finished_[1]),
                       .groups = option(options, "groups", 1)}),
        stop_now_(std::vector<int32_t>(finished_[0]), active),
        config_(search_config, sentences_of(options, finished_[0], given("stop_table", options)),
                words_of(options), active),
        now_({{.number = 1, .active_count = sentences}}, active) {
    const int64_t total = shape_[1], history = shape_[2], all = finished_[0];
    search = {.lse = tensors.data<float>(lse, "lse", {sentences * (total / all)}),
              .active = active_sentences(tensors, active),
              .config = config_.view(),
              .state = now_.data(),
              .stop = {.stop_now = stop_now_.data(),
                       .stop_first = given("stop_first", options),
                       .stop_states = options.contains("stop_table")
                                          ? kept<int32_t>("stop_states", {-1, total})
                                          : nullptr},
              .sums = kept<float>("sums", {total}),
              .tokens = kept<int32_t>("tokens", {-1, total}),
              .parents = kept<int32_t>("parents", {-1, total}),
              .cache_indirection = kept<int32_t>("cache_indirection", {2, -1, -1}),
              .finished = reinterpret_cast<Hypothesis*>(kept<int32_t>("finished", {-1, -1, 5})),
              .finished_count = kept<int32_t>("finished_count", {all}),
              .done = kept<int32_t>("done", {all}),
              .fault = kept<int32_t>("fault", {all}),
              .beams = static_cast<int>(total / all),
              .vocab = options["vocab"].cast<int>(),
              .total_rows = static_cast<int>(total),
              .history = static_cast<int>(history)};
  }
  SearchStep(const SearchStep&) = delete;
  SearchStep& operator=(const SearchStep&) = delete;

  template <typename T>
  T* kept(const char* name, const std::vector<int64_t>& shape) const {
    return tensors.data<T>(state[name], name, shape);
  }

  const Tensors tensors;
  const py::dict state;
  const int sentences;  // active ones
  BeamSearch search;

 private:
  // Null where it is not given.
  const int32_t* given(const char* name, const py::dict& options) const {
    return options.contains(name) ? tensors.view(options[name], name).data<int32_t>() : nullptr;
  }

  const std::vector<int64_t> shape_, finished_;

 public:
  const SearchConfig search_config;

 private:
  const Placed<int32_t> stop_now_;
  const PlacedConfig config_;
  const Placed<StepState> now_;
};

// The best of each row or each sentence, values and ids [n, k].
class Best {
 public:
  Best(const object& values, const object& ids) {
    const py::module_ torch = py::module_::import("torch");
    const py::tuple pair = py::make_tuple(values.attr("view")(torch.attr("int32")), ids);
    numbers_ = torch.attr("stack")(pair, py::arg("dim") = -1).attr("contiguous")();
  }
  Best(const object& like, int64_t n, int k) : numbers_(empty_like(like, "int32", {n, k, 2})) {}

  int64_t n() const { return numbers_.attr("shape")[py::int_(0)].cast<int64_t>(); }
  int k() const { return numbers_.attr("shape")[py::int_(1)].cast<int>(); }
  Candidate* data() const {
    return reinterpret_cast<Candidate*>(numbers_.attr("data_ptr")().cast<uintptr_t>());
  }
  py::tuple unbound() const {
    const object values = numbers_[py::make_tuple(py::ellipsis(), 0)].attr("contiguous")();
    const object ids = numbers_[py::make_tuple(py::ellipsis(), 1)].attr("contiguous")();
    return py::make_tuple(values.attr("view")(py::module_::import("torch").attr("float32")), ids);
  }

 private:
  object numbers_;
};

// Scratch of so many T.
template <typename T>
class Scratch {
 public:
  Scratch(const object& like, int64_t count)
      : bytes_(empty_like(like, "uint8", {count * static_cast<int64_t>(sizeof(T))})) {}
  T* data() const {
    return reinterpret_cast<T*>(bytes_.attr("data_ptr")().template cast<uintptr_t>());
  }

 private:
  object bytes_;
};

// keys: [rows, k] of candidates that were sampled.
py::tuple run_merge_beams(const object& values, const object& ids, const object& lse,
                          const object& active, const object& sums, int m, int vocab,
                          const object& keys, float sibling_penalty, const std::string& isa,
                          int threads) {
  const Tensors in(py::str(active.attr("device")));
  const int sentences = static_cast<int>(in.sizes(active, "active", 2)[0]);
  const Best best(values, ids), candidates(active, sentences, m);
  const Scratch<KeyedCandidate> queue(active, best.n() * best.k());
  const Placed<StepState> now({{.number = 1, .active_count = sentences}}, active);
  SentenceConfig sentence;
  sentence.beam.sibling_penalty = sibling_penalty;
  const std::vector<SentenceConfig> all(in.sizes(sums, "sums", 1)[0], sentence);
  const PlacedConfig config({}, all, {}, active);
  const MergeBeamsParams params{.best = best.data(),
                                .keys = in.data_or_null<float>(keys, "keys", {best.n(), best.k()}),
                                .lse = in.data_or_null<float>(lse, "lse", {best.n()}),
                                .sums = in.data<float>(sums, "sums", {-1}),
                                .active = active_sentences(in, active),
                                .config = config.view(),
                                .state = now.data(),
                                .candidates = candidates.data(),
                                .queue = queue.data(),
                                .sentences = sentences,
                                .beams = static_cast<int>(best.n() / sentences),
                                .k = best.k(),
                                .m = m,
                                .vocab = vocab};
  run_on(active, isa, threads, [&](auto& stream) { merge_beams(stream, params); });
  return candidates.unbound();
}

// values, ids: merge_beams'. ended: uint8 [sentences, m], from the host.
void run_beam_step(const object& values, const object& ids, const object& lse, const object& active,
                   const object& ended, const std::string& isa, int threads,
                   const py::kwargs& options) {
  const SearchStep step(lse, active, options);
  const Best best(values, ids);
  const BeamStepParams params{
      .search = step.search,
      .candidates = best.data(),
      .ended = step.tensors.data_or_null<uint8_t>(ended, "ended", {step.sentences, best.k()}),
      .sentences = step.sentences,
      .m = best.k()};
  run_on(active, isa, threads, [&](auto& stream) { beam_step(stream, params); });
}

// values, ids: of the rows, [sentences * K, K].
void run_contrast_step(const object& values, const object& ids, const object& lse,
                       const object& similarity, const object& active, const std::string& isa,
                       int threads, const py::kwargs& options) {
  const SearchStep step(lse, active, options);
  const Best best(values, ids);
  const ContrastStepParams params{
      .search = step.search,
      .best = best.data(),
      .lse = step.search.lse,
      .similarity = step.tensors.data<float>(similarity, "similarity", {best.n()}),
      .sentences = step.sentences};
  run_on(active, isa, threads, [&](auto& stream) { contrast_step(stream, params); });
}

// state: group_counts too, [B, K].
void run_diverse_step(const object& values, const object& ids, const object& lse,
                      const object& active, const std::string& isa, int threads,
                      const py::kwargs& options) {
  const SearchStep step(lse, active, options);
  const BeamSearch& s = step.search;
  const Best best(values, ids);
  const Scratch<KeyedCandidate> queue(active, best.n() * best.k());
  const DiverseStepParams<float> params{
      .search = s,
      .best = best.data(),
      .lse = s.lse,
      .processors = nullptr,
      .group_counts = step.kept<int32_t>("group_counts", {-1, s.beams}),
      .queue = queue.data(),
      .sentences = step.sentences,
      .k = best.k(),
      .m = best.k() - s.beams + s.beams / step.search_config.groups};
  run_on(active, isa, threads, [&](auto& stream) { diverse_step<float>(stream, params); });
}

// The tables of constraints.h, on the host.
struct PhraseLists {
  std::vector<int32_t> depths, first_edge, tokens;

  Phrases view() const { return view(depths.data(), first_edge.data(), tokens.data()); }
  Phrases view(const int32_t* height, const int32_t* edge, const int32_t* token) const {
    return {.depths = height,
            .first_edge = edge,
            .tokens = token,
            .count = static_cast<int>(depths.size()),
            .longest = *std::max_element(depths.begin(), depths.end()),
            .most_wanted = static_cast<int>(tokens.size())};
  }
};

std::vector<int32_t> run_begin_progress(const std::vector<int32_t>& row,
                                        const PhraseLists& phrases) {
  std::vector<int32_t> progress(kProgress + phrases.depths.size());
  begin_progress(phrases.view(), row.data(), static_cast<int>(row.size()), progress.data());
  return progress;
}

// values, ids: merge_beams'. row_values, row_ids: of the rows. scores: [rows, V],
// log-probabilities. state: progress, spare and spare_count too.
void run_constrained_step(const object& values, const object& ids, const object& row_values,
                          const object& row_ids, const object& scores, const object& lse,
                          const object& active, const PhraseLists& phrases, const std::string& isa,
                          int threads, const py::kwargs& options) {
  const SearchStep step(lse, active, options);
  const BeamSearch& s = step.search;
  const Best merged(values, ids), rows(row_values, row_ids);
  const Placed<int32_t> depths(phrases.depths, active), edges(phrases.first_edge, active);
  const Placed<int32_t> tokens(phrases.tokens, active);
  const Phrases view = phrases.view(depths.data(), edges.data(), tokens.data());
  const Placed<Phrases> placed({view}, active);
  const Scratch<Ranked> queue(active, rows.n() * (1 + view.most_wanted));
  const int64_t width = kProgress + view.count;
  const ConstrainedStepParams params{
      .search = s,
      .phrases = placed.data(),
      .candidates = merged.data(),
      .best = rows.data(),
      .scores = step.tensors.data<float>(scores, "scores", {rows.n(), s.vocab}),
      .progress = step.kept<int32_t>("progress", {2, s.total_rows, width}),
      .spare = reinterpret_cast<Hypothesis*>(step.kept<int32_t>("spare", {-1, s.beams, 5})),
      .spare_count = step.kept<int32_t>("spare_count", {-1}),
      .queue = queue.data(),
      .sentences = step.sentences,
      .k = rows.k(),
      .m = merged.k(),
      .stride = s.vocab};
  run_on(active, isa, threads, [&](auto& stream) { constrained_step(stream, params); });
}

}  // namespace

void bind_beams(py::module_& kernels) {
  const py::arg values("values"), ids("ids"), lse("lse"), active("active");
  const py::arg isa("isa"), threads("threads");
  const py::kw_only named;
  py::enum_<EarlyStopping>(kernels, "EarlyStopping")
      .value("no", EarlyStopping::no)
      .value("yes", EarlyStopping::yes)
      .value("never", EarlyStopping::never);
  kernels.def("merge_beams", &run_merge_beams,
              "(values, ids), both [sentences, m], best first, of the rows' best.", values, ids,
              lse, active, py::arg("sums"), named, py::arg("m"), py::arg("vocab"),
              py::arg("keys") = py::none(), py::arg("sibling_penalty") = 0.0f, isa, threads);
  kernels.def("beam_step", &run_beam_step, "One step; `state` holds what the search keeps.", values,
              ids, lse, active, named, py::arg("ended") = py::none(), isa, threads);
  kernels.def("diverse_step", &run_diverse_step, "The same in groups.", values, ids, lse, active,
              named, isa, threads);
  kernels.def("contrast_step", &run_contrast_step, "The same of contrastive search.", values, ids,
              lse, py::arg("similarity"), active, named, isa, threads);
  py::class_<PhraseLists>(kernels, "Phrases")
      .def(py::init([](std::vector<int32_t> depths, std::vector<int32_t> first_edge,
                       std::vector<int32_t> tokens) {
             return PhraseLists{std::move(depths), std::move(first_edge), std::move(tokens)};
           }),
           py::arg("depths"), py::arg("first_edge"), py::arg("tokens"));
  kernels.def("begin_progress", &run_begin_progress, "The progress of a row of tokens.",
              py::arg("row"), py::arg("phrases"));
  kernels.def("constrained_step", &run_constrained_step, "The same with words to be held.", values,
              ids, py::arg("row_values"), py::arg("row_ids"), py::arg("scores"), lse, active, named,
              py::arg("phrases"), isa, threads);
}

}  // namespace decoding
