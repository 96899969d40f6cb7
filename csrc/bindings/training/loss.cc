// training.*: cross-entropy and its gradient.
#include "bindings/training/training.h"
#include "kernels/rows/cross_entropy.h"

namespace decoding {
namespace {

using py::object;
using std::string;

[[noreturn]] void refuse_label(int64_t label, int classes, int64_t ignored, const string& when) {
  throw py::index_error("labels must be 0 to " + std::to_string(classes - 1) + ", or " +
                        std::to_string(ignored) + " where they are ignored, got " +
                        std::to_string(label) + when);
}

// Labels on the CPU.
void check_labels(const int64_t* labels, int rows, int classes, int64_t ignored) {
  for (int r = 0; r < rows; ++r) {
    const bool fine = (labels[r] >= 0 && labels[r] < classes) || labels[r] == ignored;
    if (!fine) refuse_label(labels[r], classes, ignored, "");
  }
}

// Reports the wrong label of a call before.
LabelFault* label_fault(const Tensors& in) {
  auto* fault = fault_memory<LabelFault>(in);
  if (fault == nullptr) return nullptr;
  if (volatile int& found = fault->found; found != 0) {
    found = 0;
    refuse_label(
        fault->label, fault->classes, fault->ignored,
        " in an earlier call on " + in.device() + ", whose row has loss NaN and gradient 0");
  }
  return fault;
}

// What the arguments that all functions have in common say.
struct TargetArguments {
  object labels, weight;
  int64_t ignored;
  double smoothing = 0.0;
  object weight_sum = py::none();

  template <typename R>
  Targets<R> read(const Tensors& in, int64_t rows, int64_t classes) const {
    CHECK(rows <= INT32_MAX && classes <= INT32_MAX, "rows and classes must be below 2^31");
    CHECK(smoothing == 0.0 || weight.is_none() == weight_sum.is_none(),
          "weight_sum goes with weight");
    const Targets<R> targets{.labels = in.data<int64_t>(labels, "labels", {rows}),
                             .weight = in.data_or_null<R>(weight, "weight", {classes}),
                             .weight_sum = in.data_or_null<R>(weight_sum, "weight_sum", {1}),
                             .ignored = ignored,
                             .smoothing = static_cast<R>(smoothing),
                             .rows = static_cast<int>(rows),
                             .classes = static_cast<int>(classes)};
    if (!in.on_cuda()) check_labels(targets.labels, targets.rows, targets.classes, ignored);
    return targets;
  }
};

void bind_cross_entropy(py::module_& training) {
  training.def(
      "cross_entropy",
      [](object x, object labels, object losses, object softmax, object weight, object weight_sum,
         int64_t ignored, double smoothing, const string& isa, int threads) {
        run_training(
            x, {isa, threads},
            [&]<typename T>(const Tensors& in) {
              const auto [from, rows, classes] = in.rows(x, "x");
              const TargetArguments targets{labels, weight, ignored, smoothing, weight_sum};
              return CrossEntropyParams<T>{
                  .x = from.data<T>(),
                  .targets = targets.read<Real<T>>(in, rows, classes),
                  .losses = in.data<Real<T>>(losses, "losses", {rows}),
                  .softmax = in.data<Real<T>>(softmax, "softmax", {rows, 2}),
                  .fault = label_fault(in)};
            },
            [](auto& stream, const auto& params) { cross_entropy(stream, params); });
      },
      py::arg("x"), py::arg("labels"), py::arg("losses"), py::arg("softmax"),
      py::arg("weight") = py::none(), py::arg("weight_sum") = py::none(), py::arg("ignored") = -100,
      py::arg("smoothing") = 0.0, py::arg("isa") = "", py::arg("threads") = 0);
}

void bind_total_loss(py::module_& training) {
  training.def(
      "total_loss",
      [](object losses, object labels, object total, object count, bool mean, object weight,
         int64_t ignored, const string& isa, int threads) {
        run_training(
            losses, {isa, threads},
            [&]<typename T>(const Tensors& in) {
              const int64_t rows = in.sizes(losses, "losses", 1)[0];
              using R = Real<T>;
              // Without weights nothing depends on the number of classes.
              const auto classes = weight.is_none() ? INT32_MAX : in.sizes(weight, "weight", 1)[0];
              const TargetArguments targets{labels, weight, ignored};
              return TotalLossParams<R>{.losses = in.data<R>(losses, "losses", {rows}),
                                        .targets = targets.read<R>(in, rows, classes),
                                        .total = in.numbers<R>(total, "total", 1),
                                        .count = in.numbers<R>(count, "count", 1),
                                        .mean = mean};
            },
            [](auto& stream, const auto& params) { total_loss(stream, params); });
      },
      py::arg("losses"), py::arg("labels"), py::arg("total"), py::arg("count"), py::arg("mean"),
      py::arg("weight") = py::none(), py::arg("ignored") = -100, py::arg("isa") = "",
      py::arg("threads") = 0);
}

void bind_cross_entropy_backward(py::module_& training) {
  training.def(
      "cross_entropy_backward",
      [](object x, object labels, object softmax, object upstream, object dx, object count,
         object weight, object weight_sum, int64_t ignored, double smoothing, const string& isa,
         int threads) {
        run_training(
            x, {isa, threads},
            [&]<typename T>(const Tensors& in) {
              using R = Real<T>;
              const auto [from, rows, classes] = in.rows(x, "x");
              const TargetArguments targets{labels, weight, ignored, smoothing, weight_sum};
              label_fault(in);  // throws what earlier calls have left
              const TensorView given = in.view(upstream, "upstream");
              const bool each = given.numel() == rows;
              CHECK(each || given.numel() == 1, "upstream must have ", rows, " numbers, or 1, has ",
                    given.numel());
              return CrossEntropyBackwardParams<T>{
                  .x = from.data<T>(),
                  .targets = targets.read<R>(in, rows, classes),
                  .softmax = in.data<R>(softmax, "softmax", {rows, 2}),
                  .upstream = given.data<R>(),
                  .count = count.is_none() ? nullptr : in.numbers<R>(count, "count", 1),
                  .dx = in.data<T>(dx, "dx", from.shape()),
                  .each = each};
            },
            [](auto& stream, const auto& params) { cross_entropy_backward(stream, params); });
      },
      py::arg("x"), py::arg("labels"), py::arg("softmax"), py::arg("upstream"), py::arg("dx"),
      py::arg("count") = py::none(), py::arg("weight") = py::none(),
      py::arg("weight_sum") = py::none(), py::arg("ignored") = -100, py::arg("smoothing") = 0.0,
      py::arg("isa") = "", py::arg("threads") = 0);
}

}  // namespace

void bind_training_loss(py::module_& training) {
  bind_cross_entropy(training);
  bind_total_loss(training);
  bind_cross_entropy_backward(training);
}

}  // namespace decoding
