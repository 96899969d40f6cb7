// kernels.*: the output projection with its choice, and shortlists of its outputs. CPU alone.
#include "kernels/linear/vocab_projection.h"

#include <pybind11/pybind11.h>

#include "bindings/testing/linear.h"
#include "kernels/linear/shortlist.h"
#include "kernels/search/logits.h"

namespace decoding {

using py::object;
using std::string;

namespace {

// int32 [n], ascending and below `size`; a count of 0 where there is none.
struct Ids {
  Ids(const Tensors& in, const object& tensor, const string& name, int64_t size) {
    if (tensor.is_none()) return;
    const auto view = in.view(tensor, name);
    data = view.data<int32_t>({-1});
    count = static_cast<int>(view.numel());
    for (int i = 0; i < count; ++i) {
      CHECK(data[i] >= 0 && data[i] < size && (i == 0 || data[i - 1] < data[i]), name,
            " must ascend and be below ", size);
    }
  }

  const int32_t* data = nullptr;
  int count = 0;
};

void bind_projection(py::module_& kernels) {
  kernels.def(
      "project",
      [](object x, object weight, object bias, object lse, object best, object group_max,
         object group_sum, object thread_best, object scale, object sums, object gamma, object beta,
         object normed, float eps, object tokens, object banned, object scratch, int outputs,
         const string& isa, int threads) {
        const Tensors in("cpu");
        const int64_t rows = in.sizes(x, "x", 2)[0], inputs = in.sizes(x, "x", 2)[1];
        const int64_t k = in.sizes(best, "best", 3)[1], groups = groups_of(outputs);
        const Ids out(in, banned, "banned", outputs);
        const LinearParams<float> product{
            .x = in.data<float>(x, "x", {rows, inputs}),
            .norm = norm_of(in, gamma, beta, inputs, eps),
            .normed = in.data_or_null<float>(normed, "normed", {rows, inputs}),
            .weight = linear_weight<float>(in, weight, scale, sums, outputs, inputs),
            .y = nullptr,
            .rows = static_cast<int>(rows)};
        const auto candidates = [&](object tensor, const char* name, std::vector<int64_t> shape) {
          return reinterpret_cast<Candidate*>(in.data<int32_t>(tensor, name, shape));
        };
        const ProjectParams<float> params{
            .x = product.x,
            .norm = product.norm,
            .normed = product.normed,
            .weight = product.weight,
            .bias = in.data_or_null<float>(bias, "bias", {outputs}),
            .tokens = in.data_or_null<int32_t>(tokens, "tokens", {outputs}),
            .banned = out.data,
            .group_max = in.data<float>(group_max, "group_max", {rows, groups}),
            .group_sum = in.data<float>(group_sum, "group_sum", {rows, groups}),
            .lse = in.data<float>(lse, "lse", {rows}),
            .best = candidates(best, "best", {rows, k, 2}),
            .thread_best = candidates(thread_best, "thread_best", {threads, rows, k, 2}),
            .scratch = scratch_of(in, scratch, product),
            .rows = product.rows,
            .k = static_cast<int>(k),
            .banned_count = out.count};
        run_on_cpu(isa, threads, [](auto& stream, const auto& p) { project(stream, p); }, params);
      },
      "best, thread_best: int32 [..., k, 2], the bits of a value and its token", py::arg("x"),
      py::arg("weight"), py::arg("bias"), py::arg("lse"), py::arg("best"), py::kw_only(),
      py::arg("group_max"), py::arg("group_sum"), py::arg("thread_best"),
      py::arg("scale") = py::none(), py::arg("sums") = py::none(), py::arg("gamma") = py::none(),
      py::arg("beta") = py::none(), py::arg("normed") = py::none(), py::arg("eps") = 1e-5f,
      py::arg("tokens") = py::none(), py::arg("banned") = py::none(),
      py::arg("scratch") = py::none(), py::arg("outputs"), py::arg("isa"), py::arg("threads"));
}

void bind_shortlist(py::module_& kernels) {
  kernels.def(
      "gather_outputs",
      [](object weight, object scale, object sums, object bias, object tokens, object panels,
         object to_scale, object to_sums, object to_bias, int outputs, int inputs,
         const string& isa, int threads) {
        const Tensors in("cpu");
        const Ids list(in, tokens, "tokens", outputs);
        const int64_t count = list.count;
        GatherOutputsParams params{
            .weight = linear_weight<float>(in, weight, scale, sums, outputs, inputs),
            .bias = in.data_or_null<float>(bias, "bias", {outputs}),
            .tokens = list.data,
            .panels = nullptr,
            .scale = in.data_or_null<float>(to_scale, "to_scale", {count}),
            .sums = in.data_or_null<int32_t>(to_sums, "to_sums", {count}),
            .bias_gathered = in.data_or_null<float>(to_bias, "to_bias", {count}),
            .count = list.count};
        linear_weight<float>(in, panels, to_scale, to_sums, count, inputs);
        params.panels = static_cast<uint32_t*>(in.view(panels, "panels").data());
        on_cpu(isa, threads, [&](auto& stream) { gather_outputs(stream, params); });
      },
      py::arg("weight"), py::arg("scale"), py::arg("sums"), py::arg("bias"), py::arg("tokens"),
      py::arg("panels"), py::arg("to_scale"), py::arg("to_sums"), py::arg("to_bias"), py::kw_only(),
      py::arg("outputs"), py::arg("inputs"), py::arg("isa"), py::arg("threads"));
  kernels.def(
      "spread_logits",
      [](object x, object tokens, object y, const string& isa, int threads) {
        const Tensors in("cpu");
        const int64_t rows = in.sizes(y, "y", 2)[0], vocab = in.sizes(y, "y", 2)[1];
        const Ids list(in, tokens, "tokens", vocab);
        const SpreadLogitsParams params{.x = in.data<float>(x, "x", {rows, list.count}),
                                        .tokens = list.data,
                                        .y = in.data<float>(y, "y", {rows, vocab}),
                                        .rows = static_cast<int>(rows),
                                        .count = list.count,
                                        .vocab = static_cast<int>(vocab)};
        on_cpu(isa, threads, [&](auto& stream) { spread_logits(stream, params); });
      },
      py::arg("x"), py::arg("tokens"), py::arg("y"), py::kw_only(), py::arg("isa"),
      py::arg("threads"));
}

}  // namespace

void bind_project(py::module_& kernels) {
  bind_projection(kernels);
  bind_shortlist(kernels);
}

}  // namespace decoding
