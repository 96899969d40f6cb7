// decoding._C.kernels: the searches in which rows compete, for their tests. See search.cc.
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/kernels.h"
#include "bindings/tensor.h"
#include "kernels/beam.h"
#include "kernels/constrained.h"
#include "kernels/diverse.h"

namespace decoding {
namespace {

// `finished` is int32 [sentences, capacity, 5]: a Hypothesis has five numbers, the first two of
// them floats.
static_assert(sizeof(Hypothesis) == 5 * sizeof(int32_t));

BeamRules rules_of(const py::dict& options, int capacity) {
  const auto number = [&](const char* name, double otherwise) {
    return options.contains(name) ? options[name].cast<double>() : otherwise;
  };
  return {.length_penalty = number("length_penalty", 1.0),
          .normalization =
              number("gnmt", 0) != 0 ? LengthNormalization::gnmt : LengthNormalization::power,
          .early_stopping = options.contains("early_stopping")
                                ? options["early_stopping"].cast<EarlyStopping>()
                                : EarlyStopping::no,
          .capacity = capacity,
          .sibling_penalty = static_cast<float>(number("sibling_penalty", 0.0)),
          .group_penalty = static_cast<float>(number("group_penalty", 0.0)),
          .groups = static_cast<int32_t>(number("groups", 1)),
          .pad = static_cast<int32_t>(number("pad", 0)),
          .forced_last = static_cast<int32_t>(number("forced_last", 0))};
}

// One step of a search, and what only lives as long. options: eos, state (what the search keeps,
// see beam.h for the shapes), vocab, step, position, max_new (of all, or of each sentence); what
// rules_of reads; stop_table and stop_first, forced_first (whether there is a token of that kind)
// where given.
class SearchStep {
 public:
  SearchStep(const py::object& lse, const py::object& live, const py::dict& options)
      : eos_(options["eos"].cast<std::vector<int32_t>>()) {
    const py::dict state = options["state"];
    const auto kept = [&](const char* name) { return TensorView::of(state[name], name); };
    const TensorView slots = kept("slots"), finished = kept("finished");
    const TensorView alive = TensorView::of(live, "live");
    const int64_t sentences = finished.size(0), total = slots.size(1), history = slots.size(2);
    read_max_new(options, sentences);
    read_ends(options, total);
    rules_ = rules_of(options, static_cast<int>(finished.size(1)));
    now_ = {options["step"].cast<int>(), options["position"].cast<int>(),
            static_cast<int>(alive.size(0))};
    CHECK(0 < now_.number && 0 <= now_.position && now_.position < history, "step ", now_.number,
          " at position ", now_.position, " of ", history);
    const int beams = static_cast<int>(total / sentences);
    search = {.lse = TensorView::of(lse, "lse").data<float>({now_.live_count * beams}),
              .live = alive.data<int32_t>(),
              .sentences = sentence_rules_.data(),
              .ends = &ends_,
              .rules = &rules_,
              .now = &now_,
              .sums = kept("sums").data<float>({total}),
              .tokens = kept("tokens").data<int32_t>({-1, total}),
              .parents = kept("parents").data<int32_t>({-1, total}),
              .slots = slots.data<int32_t>({2, -1, -1}),
              .finished = reinterpret_cast<Hypothesis*>(finished.data<int32_t>({-1, -1, 5})),
              .finished_count = kept("finished_count").data<int32_t>({sentences}),
              .done = kept("done").data<int32_t>({sentences}),
              .fault = kept("fault").data<int32_t>({sentences}),
              .beams = beams,
              .vocab = options["vocab"].cast<int>(),
              .total_slots = static_cast<int>(total),
              .history = static_cast<int>(history)};
  }
  SearchStep(const SearchStep&) = delete;
  SearchStep& operator=(const SearchStep&) = delete;

  int sentences() const { return now_.live_count; }
  int rows() const { return sentences() * search.beams; }
  const BeamRules& rules() const { return rules_; }

  BeamSearch search;

 private:
  void read_max_new(const py::dict& options, int64_t sentences) {
    using OneOrEach = std::variant<int, std::vector<int>>;
    const auto max_new = options["max_new"].cast<OneOrEach>();
    const bool forced = options.contains("forced_first") && options["forced_first"].cast<bool>();
    sentence_rules_.assign(sentences, SentenceRules{.forced_first = forced ? 0 : -1});
    for (int64_t b = 0; b < sentences; ++b) {
      const auto* each = std::get_if<std::vector<int>>(&max_new);
      sentence_rules_[b].max_new = each != nullptr ? each->at(b) : std::get<int>(max_new);
    }
  }

  void read_ends(const py::dict& options, int64_t total) {
    ends_ = {
        .eos = eos_.data(), .stop_now = &stop_now_, .eos_count = static_cast<int>(eos_.size())};
    if (!options.contains("stop_table")) return;
    const py::dict state = options["state"];
    ends_.stop_table = TensorView::of(options["stop_table"], "stop_table").data<int32_t>({-1, -1});
    ends_.stop_first = TensorView::of(options["stop_first"], "stop_first").data<int32_t>({-1});
    ends_.stop_states =
        TensorView::of(state["stop_states"], "stop_states").data<int32_t>({-1, total});
  }

  const std::vector<int32_t> eos_;
  std::vector<SentenceRules> sentence_rules_;
  const int32_t stop_now_ = 0;
  Ends ends_{};
  BeamRules rules_{};
  StepState now_{};
};

// The best of each row or each sentence, [rows, k].
class Best {
 public:
  Best(const py::object& values, const py::object& ids) {
    const TensorView value = TensorView::of(values, "values"), id = TensorView::of(ids, "ids");
    k = static_cast<int>(value.size(1));
    for (int64_t i = 0; i < value.numel(); ++i) {
      candidates.push_back({value.data<float>()[i], id.data<int32_t>(value.shape())[i]});
    }
  }

  std::vector<Candidate> candidates;
  int k;
};

// keys: [rows, k] of candidates that were drawn.
py::tuple run_merge_beams(const py::object& values, const py::object& ids, const py::object& lse,
                          const py::object& live, const py::object& sums, int m, int vocab,
                          const py::object& keys, float sibling_penalty, const std::string& isa,
                          int threads) {
  const Best best(values, ids);
  const TensorView alive = TensorView::of(live, "live");
  const int64_t count = alive.size(0), rows = best.candidates.size() / best.k;
  std::vector<Candidate> candidates(count * m);
  std::vector<Contender> queue(best.candidates.size());
  const auto floats = [](const py::object& tensor, const char* name, std::vector<int64_t> shape) {
    return tensor.is_none() ? nullptr : TensorView::of(tensor, name).data<float>(shape);
  };
  const StepState now{.number = 1, .position = 0, .live_count = static_cast<int>(count)};
  const BeamRules rules{.sibling_penalty = sibling_penalty};
  const MergeBeamsParams params{.best = best.candidates.data(),
                                .keys = floats(keys, "keys", {rows, best.k}),
                                .lse = floats(lse, "lse", {rows}),
                                .sums = floats(sums, "sums", {-1}),
                                .live = alive.data<int32_t>(),
                                .rules = &rules,
                                .now = &now,
                                .candidates = candidates.data(),
                                .queue = queue.data(),
                                .sentences = static_cast<int>(count),
                                .beams = static_cast<int>(rows / count),
                                .k = best.k,
                                .m = m,
                                .vocab = vocab};
  on_cpu(isa, threads, [&](auto& stream) { merge_beams(stream, params); });
  const py::module_ torch = py::module_::import("torch");
  const std::vector<int64_t> shape{count, m};
  py::object out = torch.attr("empty")(shape, py::arg("dtype") = torch.attr("float32"));
  py::object out_ids = torch.attr("empty")(shape, py::arg("dtype") = torch.attr("int32"));
  for (size_t i = 0; i < candidates.size(); ++i) {
    TensorView::of(out, "values").data<float>()[i] = candidates[i].value;
    TensorView::of(out_ids, "ids").data<int32_t>()[i] = candidates[i].id;
  }
  return py::make_tuple(out, out_ids);
}

// values, ids: merge_beams'. ended: uint8 [live, m], from the host.
void run_beam_step(const py::object& values, const py::object& ids, const py::object& lse,
                   const py::object& live, const py::object& ended, const std::string& isa,
                   int threads, const py::kwargs& options) {
  const SearchStep step(lse, live, options);
  Best best(values, ids);
  const BeamStepParams params{
      .search = step.search,
      .candidates = best.candidates.data(),
      .ended = ended.is_none()
                   ? nullptr
                   : TensorView::of(ended, "ended").data<uint8_t>({step.sentences(), best.k}),
      .sentences = step.sentences(),
      .m = best.k};
  on_cpu(isa, threads, [&](auto& stream) { beam_step(stream, params); });
}

// state: group_counts too, [B, K].
void run_diverse_step(const py::object& values, const py::object& ids, const py::object& lse,
                      const py::object& live, const std::string& isa, int threads,
                      const py::kwargs& options) {
  const SearchStep step(lse, live, options);
  const BeamSearch& s = step.search;
  const Best best(values, ids);
  const py::dict state = options["state"];
  std::vector<Contender> queue(best.candidates.size());
  const DiverseStepParams<float> params{
      .search = s,
      .best = best.candidates.data(),
      .lse = s.lse,
      .processors = nullptr,
      .group_counts =
          TensorView::of(state["group_counts"], "group_counts").data<int32_t>({-1, s.beams}),
      .queue = queue.data(),
      .sentences = step.sentences(),
      .k = best.k,
      .m = best.k - s.beams + s.beams / step.rules().groups};
  on_cpu(isa, threads, [&](auto& stream) { diverse_step<float>(stream, params); });
}

// The tables of phrases.h.
struct PhraseTables {
  std::vector<int32_t> heights, first_edge, tokens;

  Phrases view() const {
    return {.heights = heights.data(),
            .first_edge = first_edge.data(),
            .tokens = tokens.data(),
            .count = static_cast<int>(heights.size()),
            .longest = *std::max_element(heights.begin(), heights.end()),
            .most_wanted = static_cast<int>(tokens.size())};
  }
};

py::object run_begin_progress(const std::vector<int32_t>& row, const PhraseTables& phrases) {
  std::vector<int32_t> progress(kProgress + phrases.heights.size());
  begin_progress(phrases.view(), row.data(), static_cast<int>(row.size()), progress.data());
  return py::cast(progress);
}

// values, ids: merge_beams'. best: (values, ids) of the rows. scores: [rows, V], log-probabilities.
// state: progress, spare and spare_count too.
void run_constrained_step(const py::object& values, const py::object& ids, const py::tuple& best,
                          const py::object& scores, const py::object& lse, const py::object& live,
                          const PhraseTables& phrases, const std::string& isa, int threads,
                          const py::kwargs& options) {
  const SearchStep step(lse, live, options);
  const BeamSearch& s = step.search;
  const Best merged(values, ids), rows(best[0], best[1]);
  const Phrases view = phrases.view();
  const py::dict state = options["state"];
  const auto kept = [&](const char* name) { return TensorView::of(state[name], name); };
  std::vector<Ranked> queue(int64_t{step.rows()} * (1 + view.most_wanted));
  const int64_t width = kProgress + view.count;
  const ConstrainedStepParams params{
      .search = s,
      .phrases = &view,
      .candidates = merged.candidates.data(),
      .best = rows.candidates.data(),
      .scores = TensorView::of(scores, "scores").data<float>({step.rows(), s.vocab}),
      .progress = kept("progress").data<int32_t>({2, s.total_slots, width}),
      .spare = reinterpret_cast<Hypothesis*>(kept("spare").data<int32_t>({-1, s.beams, 5})),
      .spare_count = kept("spare_count").data<int32_t>({-1}),
      .queue = queue.data(),
      .sentences = step.sentences(),
      .k = rows.k,
      .m = merged.k,
      .stride = s.vocab};
  on_cpu(isa, threads, [&](auto& stream) { constrained_step(stream, params); });
}

}  // namespace

void bind_beams(py::module_& kernels) {
  const py::arg values("values"), ids("ids"), lse("lse"), live("live");
  const py::arg isa("isa"), threads("threads");
  const py::kw_only named;
  py::enum_<EarlyStopping>(kernels, "EarlyStopping")
      .value("no", EarlyStopping::no)
      .value("yes", EarlyStopping::yes)
      .value("never", EarlyStopping::never);
  kernels.def("merge_beams", &run_merge_beams,
              "(values, ids), both [live, m], best first, of the rows' best.", values, ids, lse,
              live, named, py::arg("sums"), py::arg("m"), py::arg("vocab"),
              py::arg("keys") = py::none(), py::arg("sibling_penalty") = 0.0f, isa, threads);
  kernels.def("beam_step", &run_beam_step, "One step; `state` holds what the search keeps.", values,
              ids, lse, live, named, py::arg("ended") = py::none(), isa, threads);
  kernels.def("diverse_step", &run_diverse_step, "The same in groups.", values, ids, lse, live,
              named, isa, threads);
  py::class_<PhraseTables>(kernels, "Phrases")
      .def(py::init([](std::vector<int32_t> heights, std::vector<int32_t> first_edge,
                       std::vector<int32_t> tokens) {
             return PhraseTables{std::move(heights), std::move(first_edge), std::move(tokens)};
           }),
           py::arg("heights"), py::arg("first_edge"), py::arg("tokens"));
  kernels.def("begin_progress", &run_begin_progress, "The progress of a row of tokens.",
              py::arg("row"), py::arg("phrases"));
  kernels.def("constrained_step", &run_constrained_step, "The same with words to be held.", values,
              ids, py::arg("best"), py::arg("scores"), lse, live, named, py::arg("phrases"), isa,
              threads);
}

}  // namespace decoding
