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
      [](object x, object y, object stats, object gamma, object beta, object residual, object bias,
         object sum, double eps, bool rms, double dropout, object seed, const string& isa,
         int threads) {
        run_training(
            x, {isa, threads},
            [&]<typename T>(const Tensors& in) {
              const auto [from, rows, cols] = in.rows(x, "x");
              const auto& shape = from.shape();
              CHECK(sum.is_none() == (bias.is_none() && residual.is_none() && dropout == 0.0),
                    "there is a sum where something is added or dropped, and only there");
              auto* const mean = in.numbers<Real<T>>(stats, "stats", rms ? rows : 2 * rows);
              return TrainingNormParams<T>{
                  .x = from.data<T>(),
                  .residual = in.data_or_null<T>(residual, "residual", shape),
                  .bias = weight_of<const T>(in, bias, "bias", cols),
                  .gamma = weight_of<const T>(in, gamma, "gamma", cols),
                  .beta = weight_of<const T>(in, beta, "beta", cols),
                  .sum = in.data_or_null<T>(sum, "sum", shape),
                  .y = in.data<T>(y, "y", shape),
                  .mean = rms ? nullptr : mean,
                  .rstd = rms ? mean : mean + rows,
                  .rows = static_cast<int>(rows),
                  .cols = static_cast<int>(cols),
                  .eps = eps,
                  .rms = rms,
                  .dropout = dropout_of(in, dropout, seed)};
            },
            [](auto& stream, const auto& params) { training_norm(stream, params); });
      },
      py::arg("x"), py::arg("y"), py::arg("stats"), py::arg("gamma"), py::arg("beta"),
      py::arg("residual"), py::arg("bias"), py::arg("sum"), py::arg("eps"), py::arg("rms"),
      py::arg("dropout") = 0.0, py::arg("seed") = py::none(), py::arg("isa") = "",
      py::arg("threads") = 0);
}

void bind_norm_backward(py::module_& training) {
  training.def(
      "norm_backward",
      [](object s, object dy, object dx, object stats, object gamma, object dgamma, object dbeta,
         object dbias, object dsum, object dresidual, double dropout, object seed,
         const string& isa, int threads) {
        Scratch scratch;
        run_training(
            s, {isa, threads},
            [&]<typename T>(const Tensors& in) {
              using R = Real<T>;
              const auto [from, rows, cols] = in.rows(s, "s");
              const auto& shape = from.shape();
              const bool totals = !(dgamma.is_none() && dbeta.is_none() && dbias.is_none());
              const TensorView kept = in.view(stats, "stats");
              const bool rms = kept.numel() == rows;
              CHECK(rms || kept.numel() == 2 * rows, "stats must have ", rows, " numbers, or ",
                    2 * rows, ", has ", kept.numel());
              CHECK(dresidual.is_none() || dropout > 0.0,
                    "without dropout the residual has the gradient dx");
              return NormBackwardParams<T>{
                  .s = from.data<T>(),
                  .dy = in.data<T>(dy, "dy", shape),
                  .dsum = in.data_or_null<T>(dsum, "dsum", shape),
                  .gamma = weight_of<const T>(in, gamma, "gamma", cols),
                  .mean = rms ? nullptr : kept.data<R>(),
                  .rstd = kept.data<R>() + (rms ? 0 : rows),
                  .dx = in.data<T>(dx, "dx", shape),
                  .dresidual = in.data_or_null<T>(dresidual, "dresidual", shape),
                  .dgamma = weight_of<T>(in, dgamma, "dgamma", cols),
                  .dbeta = weight_of<T>(in, dbeta, "dbeta", cols),
                  .dbias = weight_of<T>(in, dbias, "dbias", cols),
                  .partial = totals ? scratch.take<R>(in, s, 3 * kNormLines * cols) : nullptr,
                  .rows = static_cast<int>(rows),
                  .cols = static_cast<int>(cols),
                  .dropout = dropout_of(in, dropout, seed)};
            },
            [](auto& stream, const auto& params) { norm_backward(stream, params); });
      },
      py::arg("s"), py::arg("dy"), py::arg("dx"), py::arg("stats"), py::arg("gamma"),
      py::arg("dgamma"), py::arg("dbeta"), py::arg("dbias"), py::arg("dsum"),
      py::arg("dresidual") = py::none(), py::arg("dropout") = 0.0, py::arg("seed") = py::none(),
      py::arg("isa") = "", py::arg("threads") = 0);
}

void bind_softmax(py::module_& training) {
  training.def(
      "softmax",
      [](object x, object y, const string& isa, int threads) {
        run_training(
            x, {isa, threads},
            [&]<typename T>(const Tensors& in) {
              const auto [from, rows, cols] = in.rows(x, "x");
              return SoftmaxParams<T>{.x = from.data<T>(),
                                      .y = in.data<T>(y, "y", from.shape()),
                                      .rows = static_cast<int>(rows),
                                      .cols = static_cast<int>(cols)};
            },
            [](auto& stream, const auto& params) { softmax(stream, params); });
      },
      py::arg("x"), py::arg("y"), py::arg("isa") = "", py::arg("threads") = 0);
  training.def(
      "softmax_backward",
      [](object y, object dy, object dx, const string& isa, int threads) {
        run_training(
            y, {isa, threads},
            [&]<typename T>(const Tensors& in) {
              const auto [from, rows, cols] = in.rows(y, "y");
              return SoftmaxBackwardParams<T>{.y = from.data<T>(),
                                              .dy = in.data<T>(dy, "dy", from.shape()),
                                              .dx = in.data<T>(dx, "dx", from.shape()),
                                              .rows = static_cast<int>(rows),
                                              .cols = static_cast<int>(cols)};
            },
            [](auto& stream, const auto& params) { softmax_backward(stream, params); });
      },
      py::arg("y"), py::arg("dy"), py::arg("dx"), py::arg("isa") = "", py::arg("threads") = 0);
}

}  // namespace

void bind_training_norm(py::module_& training) {
  bind_norm(training);
  bind_norm_backward(training);
  bind_softmax(training);
}

}  // namespace decoding
