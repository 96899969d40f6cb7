// decoding._kernels: the kernels of sampling that work on scores.
#include "kernels/search/filters.h"

#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "bindings/tensor.h"
#include "bindings/testing/kernels.h"
#include "bindings/testing/placed.h"
#include "kernels/search/gumbel_topk.h"
#include "kernels/search/logits.h"

namespace decoding {
namespace {

using py::object;

std::vector<ActiveSentence> sentences_at(const std::vector<int32_t>& ids,
                                         const std::vector<int32_t>& steps) {
  std::vector<ActiveSentence> sentences;
  for (size_t i = 0; i < ids.size(); ++i) sentences.push_back({ids[i], steps.at(i), 0});
  return sentences;
}

// Scores [rows, V] of sentences, which have rows / sentences each.
struct Scores {
  // steps: of each sentence.
  Scores(const object& tensor, const std::vector<int32_t>& ids, const std::vector<int32_t>& steps,
         const std::vector<SentenceConfig>& all, bool processed = false)
      : tensors(py::str(tensor.attr("device"))),
        shape(tensors.sizes(tensor, "scores", 2)),
        data(tensors.data<float>(tensor, "scores", shape)),
        active_count(static_cast<int>(ids.size())),
        beams(static_cast<int>(shape[0]) / std::max(active_count, 1)),
        active(sentences_at(ids, steps), tensor),
        config({.processed = processed}, all, {}, tensor),
        now({{.number = 1, .active_count = active_count}}, tensor) {
    CHECK(active_count > 0 && shape[0] == int64_t{beams} * active_count, shape[0],
          " rows do not belong to ", active_count, " sentences");
    for (const int32_t id : ids) {
      CHECK(id >= 0 && id < static_cast<int>(all.size()), "there is no sentence ", id);
    }
  }
  int vocab() const { return static_cast<int>(shape[1]); }

  Tensors tensors;
  std::vector<int64_t> shape;
  float* data;
  int active_count, beams;
  Placed<ActiveSentence> active;
  PlacedConfig config;
  Placed<StepState> now;
};

// filters: the names of FilterConfig, each with the values of the sentences.
void run_filter_scores(const object& scores, const py::kwargs& options) {
  const auto sentence_ids = options["sentence_ids"].cast<std::vector<int32_t>>();
  const auto isa = options["isa"].cast<std::string>();
  const int threads = options["threads"].cast<int>();
  const auto temperature = options["temperature"].cast<std::vector<float>>();
  const auto top_k = options["top_k"].cast<std::vector<int>>();
  const auto top_p = options["top_p"].cast<std::vector<float>>();
  const auto shared = [&](const char* name, auto otherwise) {
    return options.contains(name) ? options[name].cast<decltype(otherwise)>() : otherwise;
  };
  std::vector<SentenceConfig> own(temperature.size());
  for (size_t b = 0; b < own.size(); ++b) {
    own[b].filters = {.temperature = temperature[b],
                      .top_k = top_k.at(b),
                      .top_p = top_p.at(b),
                      .top_h = shared("top_h", 0.0f),
                      .min_p = shared("min_p", 0.0f),
                      .typical_p = shared("typical_p", 1.0f),
                      .epsilon = shared("epsilon", 0.0f),
                      .eta = shared("eta", 0.0f),
                      .min_tokens = shared("min_tokens", 1)};
  }
  const Scores in(scores, sentence_ids, std::vector<int32_t>(sentence_ids.size(), 1), own);
  const int64_t groups = groups_of(in.vocab());
  const object group_max = empty_like(scores, "float32", {in.shape[0], groups});
  std::vector<Candidate> queue(int64_t{threads} * in.vocab());
  std::vector<float> maxima(threads * groups);
  const FilterParams params{
      .scores = in.data,
      .config = in.config.view(),
      .state = in.now.data(),
      .active = in.active.data(),
      .group_max = in.tensors.data<float>(group_max, "group_max", {-1, groups}),
      .queue = queue.data(),
      .maxima = maxima.data(),
      .sentences = in.active_count,
      .beams = in.beams,
      .vocab = in.vocab(),
      .stride = in.vocab()};
  run_on(scores, isa, threads, [&](auto& stream) { filter_scores(stream, params); });
}

py::tuple run_sample_candidates(const object& scores, const object& sums, int m,
                                const std::vector<uint64_t>& seed,
                                const std::vector<int32_t>& random_first,
                                const std::vector<int32_t>& sentence_ids,
                                const std::vector<int32_t>& steps, const std::string& isa,
                                int threads) {
  std::vector<SentenceConfig> own(seed.size());
  for (size_t b = 0; b < own.size(); ++b) {
    own[b].seed = seed[b];
    own[b].random_first = random_first.at(b);
  }
  const Scores in(scores, sentence_ids, steps, own);
  const int64_t rows = in.shape[0], slots = int64_t{in.beams} * static_cast<int64_t>(seed.size());
  const object best = empty_like(scores, "int32", {rows, m, 2});
  const object keys = empty_like(scores, "float32", {rows, m});
  const object perturbed = empty_like(scores, "float32", in.shape);
  const SampleCandidatesParams params{
      .scores = in.data,
      .sums = in.tensors.data<float>(sums, "sums", {slots}),
      .config = in.config.view(),
      .state = in.now.data(),
      .active = in.active.data(),
      .best = reinterpret_cast<Candidate*>(in.tensors.data<int32_t>(best, "best", {-1, -1, 2})),
      .keys = in.tensors.data<float>(keys, "keys", {-1, -1}),
      .perturbed = in.tensors.data<float>(perturbed, "perturbed", in.shape),
      .sentences = in.active_count,
      .beams = in.beams,
      .m = m,
      .vocab = in.vocab(),
      .stride = in.vocab()};
  run_on(scores, isa, threads, [&](auto& stream) { sample_candidates(stream, params); });
  const object numbers = best.attr("unbind")(-1);
  const object values = numbers[py::int_(0)].attr("contiguous")().attr("view")(
      py::module_::import("torch").attr("float32"));
  return py::make_tuple(values, numbers[py::int_(1)].attr("contiguous")(), keys);
}

}  // namespace

void bind_filters(py::module_& kernels) {
  const py::kw_only named;
  const py::arg isa("isa"), threads("threads");
  kernels.def("filter_scores", &run_filter_scores,
              "Changes scores [rows, V]; temperature, top_k and top_p are lists, of each sentence; "
              "the other filters are of all.",
              py::arg("scores"));
  kernels.def(
      "sample_candidates", &run_sample_candidates,
      "(scores, ids, keys), all [rows, m], best key first; seed and random_first are lists, "
      "of each sentence, steps of each in `sentence_ids`.",
      py::arg("scores"), py::arg("sums"), py::arg("m"), named, py::arg("seed"),
      py::arg("random_first"), py::arg("sentence_ids"), py::arg("steps"), isa, threads);
}

}  // namespace decoding
