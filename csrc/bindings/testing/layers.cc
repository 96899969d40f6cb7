// kernels.*: embed, the norms and linear.
#include <pybind11/pybind11.h>

#include "bindings/testing/linear.h"
#include "kernels/rows/embed.h"
#include "kernels/rows/logprobs.h"
#include "kernels/rows/norm.h"
#include "kernels/rows/softmax.h"

namespace decoding {

using py::object;
using std::string;

namespace {

// token_table: [V, H] of T; on the CPU also bfloat16, and panels, which have three axes.
template <typename T>
TokenTable token_table_of(const Tensors& in, const py::object& token_table, int64_t hidden) {
  const auto view = in.view(token_table, "token_table");
  const auto kind = kind_of(view, "token_table");
  if (in.on_cuda()) return {.data = view.data<T>({-1, hidden}), .kind = *kind};
  CHECK(kind == WeightKind::float32 || kind == WeightKind::bfloat16,
        "token_table must be float32 or bfloat16");
  const bool panels = view.shape().size() == 3;
  auto shape = panels ? panel_shape(1, hidden, *kind) : std::vector<int64_t>{1, hidden};
  shape[0] = view.size(0);
  CHECK(view.shape() == shape, "token_table must have rows of ", hidden, " numbers");
  return {view.data(), *kind, panels};
}

void bind_embed(py::module_& kernels) {
  kernels.def(
      "embed",
      [](object ids, object positions, object token_table, object position_table, object gamma,
         object beta, object y, float scale, float eps, bool rms, const string& isa, int threads) {
        run_kernel(
            y, isa, threads,
            [&]<typename T>(const Tensors& in) {
              const auto shape = in.sizes(y, "y", 2);
              const int64_t rows = shape[0], hidden = shape[1];
              return EmbedParams<T>{.ids = in.data<int32_t>(ids, "ids", {rows}),
                                    .positions = in.data<int32_t>(positions, "positions", {rows}),
                                    .tokens = token_table_of<T>(in, token_table, hidden),
                                    .position_table = in.data_or_null<T>(
                                        position_table, "position_table", {-1, hidden}),
                                    .norm = norm_of(in, gamma, beta, hidden, eps, rms),
                                    .y = in.data<T>(y, "y", {rows, hidden}),
                                    .rows = static_cast<int>(rows),
                                    .hidden = static_cast<int>(hidden),
                                    .scale = scale};
            },
            [](auto& stream, const auto& params) { embed(stream, params); });
      },
      py::arg("ids"), py::arg("positions"), py::arg("token_table"), py::arg("position_table"),
      py::arg("gamma"), py::arg("beta"), py::arg("y"), py::arg("scale"), py::arg("eps"),
      py::kw_only(), py::arg("rms") = false, py::arg("isa"), py::arg("threads"));
}

void bind_layer_norm(py::module_& kernels) {
  kernels.def(
      "layer_norm",
      [](object x, object gamma, object beta, object y, float eps, bool rms, object residual,
         const string& isa, int threads) {
        run_kernel(
            y, isa, threads,
            [&]<typename T>(const Tensors& in) {
              const auto shape = in.sizes(x, "x", 2);
              return LayerNormParams<T>{
                  .x = in.data<T>(x, "x", shape),
                  .norm = norm_of(in, gamma, beta, shape[1], eps, rms),
                  .y = in.data<T>(y, "y", shape),
                  .rows = static_cast<int>(shape[0]),
                  .cols = static_cast<int>(shape[1]),
                  .residual = in.data_or_null<T>(residual, "residual", shape)};
            },
            [](auto& stream, const auto& params) { layer_norm(stream, params); });
      },
      py::arg("x"), py::arg("gamma"), py::arg("beta"), py::arg("y"), py::arg("eps"), py::kw_only(),
      py::arg("rms") = false, py::arg("residual") = py::none(), py::arg("isa"), py::arg("threads"));
}

void bind_softmax(py::module_& kernels) {
  kernels.def(
      "softmax",
      [](object x, object bias, object y, float scale, const string& isa, int threads) {
        run_kernel(
            y, isa, threads,
            [&]<typename T>(const Tensors& in) {
              const auto shape = in.sizes(x, "x", 2);
              return SoftmaxParams<T>{.x = in.data<T>(x, "x", shape),
                                      .bias = in.data_or_null<float>(bias, "bias", {shape[1]}),
                                      .y = in.data<T>(y, "y", shape),
                                      .rows = static_cast<int>(shape[0]),
                                      .cols = static_cast<int>(shape[1]),
                                      .scale = scale};
            },
            [](auto& stream, const auto& params) { softmax(stream, params); });
      },
      py::arg("x"), py::arg("bias"), py::arg("y"), py::arg("scale"), py::kw_only(), py::arg("isa"),
      py::arg("threads"));
}

void bind_label_logprobs(py::module_& kernels) {
  kernels.def(
      "label_logprobs",
      [](object logits, object labels, object y, int vocab, const string& isa, int threads) {
        run_kernel(
            logits, isa, threads,
            [&]<typename T>(const Tensors& in) {
              const auto shape = in.sizes(logits, "logits", 2);
              CHECK(vocab > 0 && vocab <= shape[1], "vocab must be 1 to ", shape[1], ", got ",
                    vocab);
              const object on_host = labels.attr("cpu")();
              check_labels(TensorView::of(on_host, "labels").data<int32_t>({shape[0]}), shape[0],
                           vocab);
              return LabelLogprobsParams<T>{
                  .logits = in.data<T>(logits, "logits", shape),
                  .labels = in.data<int32_t>(labels, "labels", {shape[0]}),
                  .y = reinterpret_cast<LabelScore*>(in.data<int32_t>(y, "y", {shape[0], 3})),
                  .rows = static_cast<int>(shape[0]),
                  .vocab = vocab,
                  .stride = static_cast<int>(shape[1])};
            },
            [](auto& stream, const auto& params) { label_logprobs(stream, params); });
      },
      "logits: [rows, stride], of which the first `vocab` columns count; y: int32 [rows, 3], the "
      "log-probability's bits, the rank and the argmax",
      py::arg("logits"), py::arg("labels"), py::arg("y"), py::arg("vocab"), py::kw_only(),
      py::arg("isa"), py::arg("threads"));
}

void bind_linear(py::module_& kernels) {
  kernels.def("linear_scratch", &linear_scratch,
              "Bytes of scratch that the CPU's products take, but for those of float32 weights",
              py::arg("rows"), py::arg("inputs"));
  kernels.def(
      "linear",
      [](object x, object weight, object bias, object residual, object y, const string& activation,
         object gamma, object beta, object normed, float eps, bool rms, object scale, object sums,
         object scratch, object gated, object quantized, object quantized_scale, bool quantizes_y,
         bool reads_quantized, const string& isa, int threads) {
        run_kernel(
            y, isa, threads,
            [&]<typename T>(const Tensors& in) {
              auto params = linear_params<T>(in, x, weight, bias, residual, y, activation, gamma,
                                             beta, normed, eps, rms, scale, sums, gated);
              params.scratch = scratch_of(in, scratch, params);
              params.quantized = quantized_rows(in, quantized, quantized_scale, params.rows);
              params.quantizes_y = quantizes_y;
              if (reads_quantized) params.x = nullptr;
              return params;
            },
            [](auto& stream, const auto& params) { linear(stream, params); });
      },
      py::arg("x"), py::arg("weight"), py::arg("bias"), py::arg("residual"), py::arg("y"),
      py::arg("activation"), py::kw_only(), py::arg("gamma") = py::none(),
      py::arg("beta") = py::none(), py::arg("normed") = py::none(), py::arg("eps") = 1e-5f,
      py::arg("rms") = false, py::arg("scale") = py::none(), py::arg("sums") = py::none(),
      py::arg("scratch") = py::none(), py::arg("gated") = py::none(),
      py::arg("quantized") = py::none(), py::arg("quantized_scale") = py::none(),
      py::arg("quantizes_y") = false, py::arg("reads_quantized") = false, py::arg("isa"),
      py::arg("threads"));
}

void bind_recording(py::module_& kernels) {
  py::class_<Recording>(kernels, "Recording",
                        "Inside `with`, calls of kernels on the CPU do not run: replay() runs them")
      .def(py::init<int>(), py::kw_only(), py::arg("threads"))
      .def("__enter__",
           [](Recording& self) -> Recording& {
             self.begin();
             return self;
           })
      .def("__exit__", [](Recording& self, const py::args&) { self.end(); })
      .def("replay", &Recording::replay);
}

}  // namespace

void bind_layers(py::module_& kernels) {
  bind_recording(kernels);
  bind_embed(kernels);
  bind_layer_norm(kernels);
  bind_softmax(kernels);
  bind_label_logprobs(kernels);
  bind_linear(kernels);
}

}  // namespace decoding
