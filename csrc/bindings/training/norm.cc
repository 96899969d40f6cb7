// training.*: norms and softmax, and their gradients.
#include "kernels/rows/norm.h"

#include <pybind11/stl.h>

#include "bindings/training/training.h"
#include "kernels/rows/softmax.h"

namespace decoding {
namespace {

using py::object;
using std::string;

// A tensor of `cols` numbers of T, or of float32 where those are of two bytes; or None.
template <typename T>
Weight<T> weight_of(const Tensors& in, const object& tensor, const string& name, int64_t cols) {
  using Number = std::remove_const_t<T>;
  if (tensor.is_none()) return {};
  const TensorView view = in.view(tensor, name);
  if (sizeof(T) == 2 && view.type() == number_type<float>) {
    return {.wide = view.data<float>({cols})};
  }
  return {.same = view.data<Number>({cols})};
}

void bind_norm(py::module_& training) {
  training.def(
      "norm",
      [](object x, object y, object residual, object bias, object gamma, object beta, object sum,
         object mean, object rstd, double eps, bool rms, const string& isa, int threads) {
        run_training(
            x, {isa, threads},
            [&]<typename T>(const Tensors& in) {
              const auto [shape, rows, cols] = in.rows(x, "x");
              CHECK(sum.is_none() == (bias.is_none() && residual.is_none()),
                    "there is a sum where something is added, and only there");
              return TrainingNormParams<T>{
                  .x = in.data<T>(x, "x", shape),
                  .residual = in.data_or_null<T>(residual, "residual", shape),
                  .bias = weight_of<const T>(in, bias, "bias", cols),
                  .gamma = weight_of<const T>(in, gamma, "gamma", cols),
                  .beta = weight_of<const T>(in, beta, "beta", cols),
                  .sum = in.data_or_null<T>(sum, "sum", shape),
                  .y = in.data<T>(y, "y", shape),
                  .mean = mean.is_none() ? nullptr : in.numbers<Real<T>>(mean, "mean", rows),
                  .rstd = rstd.is_none() ? nullptr : in.numbers<Real<T>>(rstd, "rstd", rows),
                  .rows = static_cast<int>(rows),
                  .cols = static_cast<int>(cols),
                  .eps = eps,
                  .rms = rms};
            },
            [](auto& stream, const auto& params) { training_norm(stream, params); });
      },
      py::arg("x"), py::arg("y"), py::kw_only(), py::arg("residual") = py::none(),
      py::arg("bias") = py::none(), py::arg("gamma") = py::none(), py::arg("beta") = py::none(),
      py::arg("sum") = py::none(), py::arg("mean") = py::none(), py::arg("rstd") = py::none(),
      py::arg("eps"), py::arg("rms") = false, py::arg("isa") = "", py::arg("threads") = 0);
}

void bind_norm_backward(py::module_& training) {
  training.def(
      "norm_backward",
      [](object s, object dy, object dx, object dsum, object gamma, object mean, object rstd,
         object dgamma, object dbeta, object dbias, const string& isa, int threads) {
        object partial = py::none();  // until the kernel is on its way
        run_training(
            s, {isa, threads},
            [&]<typename T>(const Tensors& in) {
              const auto [shape, rows, cols] = in.rows(s, "s");
              const bool totals = !(dgamma.is_none() && dbeta.is_none() && dbias.is_none());
              if (totals) partial = rstd.attr("new_empty")(py::make_tuple(3, kNormLines, cols));
              return NormBackwardParams<T>{
                  .s = in.data<T>(s, "s", shape),
                  .dy = in.data<T>(dy, "dy", shape),
                  .dsum = in.data_or_null<T>(dsum, "dsum", shape),
                  .gamma = weight_of<const T>(in, gamma, "gamma", cols),
                  .mean = mean.is_none() ? nullptr : in.numbers<Real<T>>(mean, "mean", rows),
                  .rstd = in.numbers<Real<T>>(rstd, "rstd", rows),
                  .dx = in.data<T>(dx, "dx", shape),
                  .dgamma = weight_of<T>(in, dgamma, "dgamma", cols),
                  .dbeta = weight_of<T>(in, dbeta, "dbeta", cols),
                  .dbias = weight_of<T>(in, dbias, "dbias", cols),
                  .partial = in.data_or_null<Real<T>>(partial, "partial", {-1, -1, -1}),
                  .rows = static_cast<int>(rows),
                  .cols = static_cast<int>(cols)};
            },
            [](auto& stream, const auto& params) { norm_backward(stream, params); });
      },
      py::arg("s"), py::arg("dy"), py::arg("dx"), py::kw_only(), py::arg("dsum") = py::none(),
      py::arg("gamma") = py::none(), py::arg("mean") = py::none(), py::arg("rstd"),
      py::arg("dgamma") = py::none(), py::arg("dbeta") = py::none(), py::arg("dbias") = py::none(),
      py::arg("isa") = "", py::arg("threads") = 0);
}

void bind_softmax(py::module_& training) {
  training.def(
      "softmax",
      [](object x, object y, const string& isa, int threads) {
        run_training(
            x, {isa, threads},
            [&]<typename T>(const Tensors& in) {
              const auto [shape, rows, cols] = in.rows(x, "x");
              return SoftmaxParams<T>{.x = in.data<T>(x, "x", shape),
                                      .y = in.data<T>(y, "y", shape),
                                      .rows = static_cast<int>(rows),
                                      .cols = static_cast<int>(cols)};
            },
            [](auto& stream, const auto& params) { softmax(stream, params); });
      },
      py::arg("x"), py::arg("y"), py::kw_only(), py::arg("isa") = "", py::arg("threads") = 0);
  training.def(
      "softmax_backward",
      [](object y, object dy, object dx, const string& isa, int threads) {
        run_training(
            y, {isa, threads},
            [&]<typename T>(const Tensors& in) {
              const auto [shape, rows, cols] = in.rows(y, "y");
              return SoftmaxBackwardParams<T>{.y = in.data<T>(y, "y", shape),
                                              .dy = in.data<T>(dy, "dy", shape),
                                              .dx = in.data<T>(dx, "dx", shape),
                                              .rows = static_cast<int>(rows),
                                              .cols = static_cast<int>(cols)};
            },
            [](auto& stream, const auto& params) { softmax_backward(stream, params); });
      },
      py::arg("y"), py::arg("dy"), py::arg("dx"), py::kw_only(), py::arg("isa") = "",
      py::arg("threads") = 0);
}

}  // namespace

void bind_training_norm(py::module_& training) {
  bind_norm(training);
  bind_norm_backward(training);
  bind_softmax(training);
}

}  // namespace decoding
