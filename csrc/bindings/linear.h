// What kernels with weights take from Python.
#pragma once

#include <string>
#include <vector>

#include "bindings/kernels.h"
#include "kernels/linear.h"

namespace decoding {

inline Norm norm_of(const Tensors& in, const py::object& gamma, const py::object& beta,
                    int64_t size, float eps) {
  return {in.data_or_null<float>(gamma, "gamma", {size}),
          in.data_or_null<float>(beta, "beta", {size}), eps};
}

// weight: in panels on the CPU; [N, K] on CUDA, where rows of y may lie apart.
template <typename T>
LinearParams<T> linear_params(const Tensors& in, const py::object& x, const py::object& weight,
                              const py::object& bias, const py::object& residual,
                              const py::object& y, const std::string& activation,
                              const py::object& gamma, const py::object& beta,
                              const py::object& normed, float eps) {
  const auto shape = in.sizes(x, "x", 2);
  const int64_t rows = shape[0], inputs = shape[1], stride = in.sizes(y, "y", 2)[1];
  const int64_t outputs = in.on_cuda() ? in.sizes(weight, "weight", 2)[0] : stride;
  CHECK(outputs <= stride, "y must have ", outputs, " columns or more, has ", stride);
  CHECK(outputs == stride || residual.is_none(), "rows of y lie apart only without a residual");
  const std::vector<int64_t> panels = {(outputs + kPanel - 1) / kPanel, inputs, kPanel};
  const std::vector<int64_t> plain = {outputs, inputs};
  return {.x = in.data<T>(x, "x", {rows, inputs}),
          .norm = norm_of(in, gamma, beta, inputs, eps),
          .normed = in.data_or_null<T>(normed, "normed", {rows, inputs}),
          .weight = {.data = in.data<T>(weight, "weight", in.on_cuda() ? plain : panels),
                     .outputs = static_cast<int>(outputs),
                     .inputs = static_cast<int>(inputs)},
          .bias = in.data_or_null<float>(bias, "bias", {outputs}),
          .residual = in.data_or_null<T>(residual, "residual", {rows, outputs}),
          .y = in.data<T>(y, "y", {rows, stride}),
          .rows = static_cast<int>(rows),
          .activation = activation_of(activation),
          .stride = outputs == stride ? 0 : static_cast<int>(stride)};
}

}  // namespace decoding
