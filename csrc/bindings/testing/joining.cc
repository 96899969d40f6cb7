// decoding._kernels: what puts requests beside others of their class.
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "bindings/request.h"
#include "bindings/testing/placed.h"
#include "engine/search/request_class.h"
#include "kernels/search/join.h"
#include "kernels/search/processors.h"

namespace decoding {
namespace {

using py::object;

// state: the fields of JoinParams by name; it is changed.
void run_join_sentences(const object& joining, const py::dict& state, int groups,
                        const std::string& isa, int threads) {
  const Tensors in(py::str(joining.attr("device")));
  const auto numbers = [&](const char* name) { return in.data<int32_t>(state[name], name, {-1}); };
  const auto table = in.sizes(state["cache_indirection"], "cache_indirection", 3);
  const auto sentences = in.sizes(state["active"], "active", 2)[0];
  const JoinParams params{.joining = reinterpret_cast<const JoiningSentence*>(
                              in.data<int32_t>(joining, "joining", {-1, 5})),
                          .state = step_state(in, state["state"]),
                          .active = active_sentences(in, state["active"]),
                          .prompt_lengths = numbers("prompt_lengths"),
                          .first_tokens = numbers("first_tokens"),
                          .stop_first = numbers("stop_first"),
                          .stop_now = numbers("stop_now"),
                          .finished_count = numbers("finished_count"),
                          .done = numbers("done"),
                          .fault = numbers("fault"),
                          .sums = in.data<float>(state["sums"], "sums", {-1}),
                          .length = numbers("length"),
                          .group_counts = numbers("group_counts"),
                          .cache_indirection = in.data<int32_t>(state["cache_indirection"],
                                                                "cache_indirection", {2, -1, -1}),
                          .count = static_cast<int>(in.sizes(joining, "joining", 2)[0]),
                          .beams = static_cast<int>(table[1] / sentences),
                          .groups = groups,
                          .total_rows = static_cast<int>(table[1]),
                          .history = static_cast<int>(table[2])};
  run_on(joining, isa, threads, [&](auto& stream) { join_sentences(stream, params); });
}

// random_first: of each sentence. rows: int32 [3, sentences * beams], to be filled: ids, positions
// and random rows.
void run_fill_rows(const object& tokens, const py::dict& state,
                   const std::vector<int32_t>& random_first, const object& rows,
                   const std::string& isa, int threads) {
  const Tensors in(py::str(tokens.attr("device")));
  const auto sentences = static_cast<int64_t>(random_first.size());
  const int64_t total = in.sizes(tokens, "tokens", 2)[1], beams = total / sentences;
  std::vector<SentenceConfig> own(sentences);
  for (int64_t b = 0; b < sentences; ++b) own[b].random_first = random_first[b];
  const PlacedConfig config({}, own, {}, tokens);
  int32_t* to = in.data<int32_t>(rows, "rows", {3, total});
  const FillRowsParams params{
      .state = step_state(in, state["state"]),
      .active = active_sentences(in, state["active"], sentences),
      .prompt_lengths = in.data<int32_t>(state["prompt_lengths"], "prompt_lengths", {sentences}),
      .first_tokens = in.data<int32_t>(state["first_tokens"], "first_tokens", {sentences}),
      .tokens = in.data<int32_t>(tokens, "tokens", {-1, total}),
      .config = config.view(),
      .ids = to,
      .positions = to + total,
      .random_row = to + 2 * total,
      .sentences = static_cast<int>(sentences),
      .beams = static_cast<int>(beams),
      .total_rows = static_cast<int>(total)};
  run_on(tokens, isa, threads, [&](auto& stream) { fill_rows(stream, params); });
}

// Lists of a request of one sentence, read where place_config() puts them: from `first` on.
py::dict placed_lists(const PyRequest& request, int first) {
  std::vector<int32_t> words(first + request.words.size(), -1);
  const SentenceConfig config = place_config(request, first, words.data());
  const auto ids = [&](int begin, int count) {
    return std::vector<int32_t>(words.begin() + begin, words.begin() + begin + count);
  };
  const auto* sequences =
      reinterpret_cast<const Sequence*>(words.data() + config.processors.banned_sequences.begin);
  std::vector<std::vector<int32_t>> banned;
  for (int i = 0; i < config.processors.banned_sequences.count; ++i) {
    banned.push_back(ids(sequences[i].begin, sequences[i].length));
    banned.back().push_back(sequences[i].last);
  }
  const auto list = [&](Span span) { return ids(span.begin, span.count); };
  py::dict lists;
  lists["eos"] = list(config.eos);
  lists["banned"] = list(config.banned);
  lists["suppressed"] = list(config.processors.suppressed);
  lists["banned_sequences"] = banned;
  lists["prompt"] = ids(config.processors.prompt, config.processors.prompt_width);
  return lists;
}

}  // namespace

void bind_joining(py::module_& kernels) {
  const py::kw_only named;
  const py::arg isa("isa"), threads("threads");
  kernels.def("join_sentences", &run_join_sentences,
              "joining: int32 [count, 5], as in join.h; changes `state`.", py::arg("joining"),
              py::arg("state"), named, py::arg("groups") = 1, isa, threads);
  kernels.def("fill_rows", &run_fill_rows, "Fills `rows`: ids, positions, random rows.",
              py::arg("tokens"), py::arg("state"), py::arg("random_first"), py::arg("rows"), named,
              isa, threads);
  kernels.def("placed_lists", &placed_lists, "As they are read behind `first` other words.",
              py::arg("request"), py::arg("first"));
}

}  // namespace decoding
