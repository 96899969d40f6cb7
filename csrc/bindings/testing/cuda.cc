// decoding._kernels: what there is on a GPU alone.
#include "bindings/cuda.h"

#include <pybind11/stl.h>

#include "bindings/testing/linear.h"
#include "kernels/linear/cuda/cublaslt/matmul.h"
#include "kernels/linear/cuda/gemm.h"
#include "kernels/search/logits.h"
#include "kernels/search/select.h"

namespace decoding {
namespace {

using py::object;
using std::string;

int index_of(const object& tensor) { return tensor.attr("device").attr("index").cast<int>(); }

// As a session does it, with knowledge of its own that goes at the end.
string run_tuned_linear(object x, object weight, object bias, object residual, object y,
                        const string& activation, object gamma, object beta, object normed,
                        float eps, bool rms, object gated, object scale) {
  string report;
  on_cuda(y, [&]<typename T>(cuda::Stream& current) {
    const Tensors in(py::str(y.attr("device")));
    DeviceTools tools(index_of(y));
    const object scratch = y.attr("clone")();  // a warm-up writes it
    const auto params = [&](const object& to) {
      return linear_params<T>(in, x, weight, bias, residual, to, activation, gamma, beta, normed,
                              eps, rms, scale, py::none(), gated);
    };
    CUDA_CHECK(cudaStreamSynchronize(current.handle()));
    cuda::Stream warm_up(current.handle(), tools.device, tools.matmul, true);
    linear(warm_up, params(scratch));
    cuda::Stream stream(current.handle(), tools.device, tools.matmul);
    linear(stream, params(y));
    CUDA_CHECK(cudaStreamSynchronize(current.handle()));
    report = tools.matmul.report();
  });
  return report;
}

void bind_fused_linear(py::module_& kernels) {
  const auto call = [](auto use) {
    return [use](object x, object weight, object bias, object residual, object y,
                 const string& activation, object gamma, object beta, object normed, float eps,
                 bool rms, object gated, int variant, object scale) {
      int found = 0;
      on_cuda(y, [&]<typename T>(cuda::Stream& stream) {
        const Tensors in(py::str(y.attr("device")));
        found = use(stream,
                    linear_params<T>(in, x, weight, bias, residual, y, activation, gamma, beta,
                                     normed, eps, rms, scale, py::none(), gated),
                    variant);
      });
      return found;
    };
  };
  const auto def = [&](const char* name, auto function, const char* doc) {
    kernels.def(name, function, doc, py::arg("x"), py::arg("weight"), py::arg("bias"),
                py::arg("residual"), py::arg("y"), py::arg("activation"),
                py::arg("gamma") = py::none(), py::arg("beta") = py::none(),
                py::arg("normed") = py::none(), py::arg("eps") = 1e-5f, py::arg("rms") = false,
                py::arg("gated") = py::none(), py::arg("variant") = 0,
                py::arg("scale") = py::none());
  };
  def("fused_linear_variants",
      call([]<typename T>(cuda::Stream& stream, const LinearParams<T>& p, int) {
        return cuda::fused_linear_variants(stream.device(), p);
      }),
      "How many kernels of our own compute the product.");
  def("adds_in_one_order",
      call([]<typename T>(cuda::Stream& stream, const LinearParams<T>& p, int variant) {
        return cuda::adds_in_one_order(stream.device(), p, variant);
      }),
      "Whether one of them is among those of a deterministic session.");
  def("fused_linear",
      call([]<typename T>(cuda::Stream& stream, const LinearParams<T>& p, int variant) {
        CHECK(variant >= 0 && variant < cuda::fused_linear_variants(stream.device(), p),
              "there is no variant ", variant);
        cuda::fused_linear(stream, p, variant);
        return variant;
      }),
      "One of them.");
  def("tune_linear", call([]<typename T>(cuda::Stream& stream, const LinearParams<T>& p, int) {
        DeviceTools& tools = renewed_tools(stream.device().id, stream.deterministic());
        cuda::Stream warm_up(stream.handle(), tools.device, tools.matmul, true);
        linear(warm_up, p);
        return 0;
      }),
      "Finds the fastest way to compute the product, for `linear` to take until the next call of "
      "this; y is overwritten. The bias must stay as it is.");
  kernels.def("tuned_linear", &run_tuned_linear,
              "Warms the product up, then runs it; returns the report.", py::arg("x"),
              py::arg("weight"), py::arg("bias"), py::arg("residual"), py::arg("y"),
              py::arg("activation"), py::kw_only(), py::arg("gamma") = py::none(),
              py::arg("beta") = py::none(), py::arg("normed") = py::none(), py::arg("eps") = 1e-5f,
              py::arg("rms") = false, py::arg("gated") = py::none(), py::arg("scale") = py::none());
  kernels.def(
      "tuning_report", [](int device) { return tools_of(device).matmul.report(); },
      "What tune_linear found.", py::arg("device") = 0);
  kernels.def(
      "set_deterministic",
      [](bool deterministic, int device) { renewed_tools(device, deterministic); },
      "Whether kernels that are called on a GPU from now on are those of a deterministic session.",
      py::arg("deterministic"), py::kw_only(), py::arg("device") = 0);
}

SearchKind search_kind(const string& name) {
  if (name == "greedy") return SearchKind::greedy;
  if (name == "sampling") return SearchKind::sampling;
  CHECK(name == "beam", "kind must be greedy, sampling or beam, got ", name);
  return SearchKind::beam;
}

void run_select(const object& logits, const py::dict& state, const py::dict& rules,
                const string& kind, int beams, int m, int vocab, bool upload) {
  on_cuda(logits, [&]<typename T>(cuda::Stream& stream) {
    const Tensors in(py::str(logits.attr("device")));
    const auto shape = in.sizes(logits, "logits", 2);
    const auto kept = [&]<typename U>(U*, const char* name) {
      return in.view(state[name], name).data<U>();
    };
    const auto ints = [&](const char* name) { return kept((int32_t*){}, name); };
    const auto floats = [&](const char* name) { return kept((float*){}, name); };
    // The config's parts lie in one tensor: the search's, the sentences', the words.
    auto* config = in.view(state["config"], "config").data<uint8_t>();
    const auto sentences = in.view(state["done"], "done").numel();
    auto* sentence_configs = reinterpret_cast<SentenceConfig*>(config + sizeof(SearchConfig));
    auto* words = reinterpret_cast<int32_t*>(sentence_configs + sentences);
    if (upload) {
      const auto put = [&](void* to, const auto& values) {
        CUDA_CHECK(cudaMemcpyAsync(to, values.data(), values.size() * sizeof(values[0]),
                                   cudaMemcpyHostToDevice, stream.handle()));
      };
      std::vector<int32_t> ids;
      const auto list = [&](const char* name) -> Span {
        const auto more = rules[name].template cast<std::vector<int32_t>>();
        const Span span = {static_cast<int32_t>(ids.size()), static_cast<int32_t>(more.size())};
        ids.insert(ids.end(), more.begin(), more.end());
        return span;
      };
      const auto each = [&]<typename U>(U, const char* name, size_t b) {
        return rules[name].template cast<std::vector<U>>().at(b);
      };
      SentenceConfig shared;
      shared.min_new = rules["min_new"].template cast<int>();
      shared.pad = rules["pad"].template cast<int>();
      shared.eos = list("eos");
      shared.banned = list("banned");
      shared.forced_last = list("forced_last");
      shared.renormalize = rules["renormalize"].template cast<bool>();
      shared.beam.length_penalty = rules["length_penalty"].template cast<double>();
      shared.beam.early_stopping = rules["early_stopping"].template cast<EarlyStopping>();
      std::vector<SentenceConfig> all(sentences, shared);
      for (size_t b = 0; b < all.size(); ++b) {
        all[b].seed = each(uint64_t{}, "seeds", b);
        all[b].random_first = each(0, "random_firsts", b);
        all[b].max_new = each(0, "max_news", b);
        all[b].forced_first = each(0, "forced_firsts", b);
        all[b].filters.temperature = each(0.0f, "temperatures", b);
        all[b].filters.top_k = each(0, "top_ks", b);
        all[b].filters.top_p = each(0.0f, "top_ps", b);
      }
      put(config, std::vector<SearchConfig>(1));
      put(sentence_configs, all);
      if (!ids.empty()) put(words, ids);
      CUDA_CHECK(cudaStreamSynchronize(stream.handle()));
    }
    const auto history = in.sizes(state["tokens"], "tokens", 2);
    const auto indirection = in.sizes(state["cache_indirection"], "cache_indirection", 3);
    select<T>(stream,
              {.kind = search_kind(kind),
               .part = SelectPart::all,
               .logits = in.data<T>(logits, "logits", shape),
               .config = {reinterpret_cast<const SearchConfig*>(config), sentence_configs, words},
               .prompt_lengths = ints("prompt_lengths"),
               .state = step_state(in, state["state"]),
               .host_state = step_state(in, state["host_state"]),
               .stop = {ints("stop_now"), nullptr, nullptr},
               .active = active_sentences(in, state["active"]),
               .sums = floats("sums"),
               .tokens = ints("tokens"),
               .parents = ints("parents"),
               .cache_indirection = ints("cache_indirection"),
               .length = ints("length"),
               .finished = reinterpret_cast<Hypothesis*>(ints("finished")),
               .finished_count = ints("finished_count"),
               .done = ints("done"),
               .fault = ints("fault"),
               .ids = ints("ids"),
               .positions = ints("positions"),
               .random_row = ints("random_row"),
               .group_max = floats("group_max"),
               .group_sum = floats("group_sum"),
               .lse = floats("lse"),
               .best = reinterpret_cast<Candidate*>(ints("best")),
               .arrivals = ints("arrivals"),
               .sentences = static_cast<int>(shape[0] / beams),
               .beams = beams,
               .m = m,
               .vocab = vocab > 0 ? vocab : static_cast<int>(shape[1]),
               .stride = static_cast<int>(shape[1]),
               .total_rows = static_cast<int>(history[1]),
               .history = static_cast<int>(indirection[2])});
  });
}

}  // namespace

void bind_cuda(py::module_& kernels) {
  bind_fused_linear(kernels);
  kernels.def(
      "select", &run_select,
      "One step from logits [sentences * beams, stride], of which the first `vocab` columns count "
      "(0: all), in place; `state` holds tensors named "
      "as the fields of SelectParams, `rules` those of SelectRules and the lists of ids; upload: "
      "whether they go over, or are still there from a call before.",
      py::arg("logits"), py::arg("state"), py::arg("rules"), py::arg("kind"), py::kw_only(),
      py::arg("beams"), py::arg("m"), py::arg("vocab") = 0, py::arg("upload") = true);
}

}  // namespace decoding
