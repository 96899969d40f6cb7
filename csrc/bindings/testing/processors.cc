// decoding._kernels: the kernel that processes logits as a decoding._C.Request asks, alone.
#include "kernels/search/shared/processors.h"

#include <pybind11/stl.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "bindings/request.h"
#include "bindings/tensor.h"
#include "bindings/testing/kernels.h"

namespace decoding {
namespace {

// A value's bytes as an int32 tensor on a device.
py::object on_device(const void* data, size_t bytes, const py::object& device) {
  const size_t words = (bytes + sizeof(int32_t) - 1) / sizeof(int32_t);
  const py::module_ torch = py::module_::import("torch");
  py::object tensor = torch.attr("zeros")(words, py::arg("dtype") = torch.attr("int32"));
  if (bytes > 0) std::memcpy(TensorView::of(tensor, "data").data(), data, bytes);
  return tensor.attr("to")(device);
}

// What one call of `process` reads and writes, in memory of the logits' device.
class ProcessCall {
 public:
  // sentences: (max_new, forced_first) of each. state: state, active, ids, tokens and
  // cache_indirection as in processors.h. scores: null makes new ones.
  ProcessCall(py::object logits, const PyRequest& request,
              const std::vector<std::pair<int, int>>& sentences, py::dict state,
              py::object unconditional, py::object scores, int vocab, int beams, int stages,
              bool competing, int threads)
      : logits_(std::move(logits)),
        state_(std::move(state)),
        unconditional_(std::move(unconditional)),
        scores_(std::move(scores)),
        vocab_(vocab),
        beams_(beams),
        stages_(stages),
        competing_(competing) {
    const py::module_ torch = py::module_::import("torch");
    const py::object device = logits_.attr("device"), float32 = torch.attr("float32");
    const auto copy = [&](const auto& values) {
      return on_device(values.data(), values.size() * sizeof(values[0]), device);
    };
    if (scores_.is_none()) {
      scores_ = torch.attr("empty_like")(logits_, py::arg("dtype") = float32);
    }
    const py::object rows = logits_.attr("shape").attr("__getitem__")(0);
    lse_ = torch.attr("empty")(py::make_tuple(2, rows), py::arg("dtype") = float32,
                               py::arg("device") = device);
    const SearchConfig search = request.search_config();
    search_ = on_device(&search, sizeof search, device);
    words_ = copy(request.words);
    std::vector<SentenceConfig> configs = request.configs;
    for (size_t b = 0; b < sentences.size(); ++b) {
      configs.at(b).max_new = sentences[b].first;
      configs[b].forced_first = sentences[b].second;
    }
    sentences_ = copy(configs);
    marks_.resize(threads * marks_size(vocab));
  }

  template <typename T>
  ProcessLogitsParams<T> params(const Tensors& in) {
    const auto sizes = in.sizes(logits_, "logits", 2);
    const auto table = in.sizes(state_["cache_indirection"], "cache_indirection", 3);
    const auto state = [&](const char* name, const std::vector<int64_t>& shape) {
      return in.data<int32_t>(state_[name], name, shape);
    };
    const int64_t rows = sizes[0], stride = sizes[1];
    float* lse = in.data<float>(lse_, "lse", {2, rows});
    const auto address = [&](const py::object& tensor) { return in.view(tensor, "config").data(); };
    return {.logits = in.data<T>(logits_, "logits", sizes),
            .unconditional = in.data_or_null<T>(unconditional_, "unconditional", sizes),
            .scores = in.data<float>(scores_, "scores", sizes),
            .lse = lse,
            .unconditional_lse = lse + rows,
            .config = {static_cast<const SearchConfig*>(address(search_)),
                       static_cast<const SentenceConfig*>(address(sentences_)),
                       static_cast<const int32_t*>(address(words_))},
            .state = step_state(in, state_["state"]),
            .active = active_sentences(in, state_["active"]),
            .ids = state("ids", {rows}),
            .tokens = state("tokens", {-1, table[1]}),
            .cache_indirection = state("cache_indirection", {2, -1, -1}),
            .marks = marks_.data(),
            .sentences = static_cast<int>(rows / beams_),
            .beams = beams_,
            .vocab = vocab_,
            .stride = static_cast<int>(stride),
            .score_stride = static_cast<int>(stride),
            .total_rows = static_cast<int>(table[1]),
            .history = static_cast<int>(table[2]),
            .stages = stages_,
            .competing = competing_};
  }

  void run(const std::string& isa, int threads) {
    run_kernel(
        logits_, isa, threads, [&]<typename T>(const Tensors& in) { return params<T>(in); },
        [](auto& stream, const auto& params) { process_logits(stream, params); });
  }

  // reprocess() of (row, token, less), behind run(); on the CPU.
  std::vector<float> again(const std::vector<std::tuple<int, int, float>>& tokens) {
    std::vector<float> values;
    if (tokens.empty()) return values;
    const auto p = params<float>(Tensors("cpu"));
    for (const auto& [i, token, less] : tokens) {
      values.push_back(
          reprocess(p, processed_row(p, i), i, token, less, [](float x) { return x; }));
    }
    return values;
  }

  py::object scores() const { return scores_; }
  py::object lse() const { return lse_[py::int_(0)]; }

 private:
  py::object logits_;
  py::dict state_;
  py::object unconditional_, scores_, lse_, search_, words_, sentences_;
  std::vector<uint32_t> marks_;
  int vocab_, beams_, stages_;
  bool competing_;
};

py::tuple run_process_logits(py::object logits, const PyRequest& request,
                             const std::vector<std::pair<int, int>>& sentences, py::dict state,
                             py::object unconditional, py::object scores, int vocab, int beams,
                             int stages, bool competing,
                             const std::vector<std::tuple<int, int, float>>& again,
                             const std::string& isa, int threads) {
  ProcessCall call(std::move(logits), request, sentences, std::move(state),
                   std::move(unconditional), std::move(scores), vocab, beams, stages, competing,
                   threads);
  call.run(isa, threads);
  return py::make_tuple(call.scores(), call.lse(), call.again(again));
}

}  // namespace

void bind_controls(py::module_& kernels) {
  const py::kw_only named;
  kernels.attr("PRE") = static_cast<int>(kPre);
  kernels.attr("MID") = static_cast<int>(kMid);
  kernels.attr("POST") = static_cast<int>(kPost);
  kernels.def("process_logits", &run_process_logits,
              "(scores, lse, `again`: reprocess of (row, token, less))", py::arg("logits"),
              py::arg("request"), py::arg("sentences"), py::arg("state"), named,
              py::arg("unconditional") = py::none(), py::arg("scores") = py::none(),
              py::arg("vocab"), py::arg("beams") = 1, py::arg("stages") = int{kAllStages},
              py::arg("competing") = false,
              py::arg("again") = std::vector<std::tuple<int, int, float>>(), py::arg("isa"),
              py::arg("threads"));
}

}  // namespace decoding
