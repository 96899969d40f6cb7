// What kernels with weights take from Python.
#pragma once

#include <string>
#include <vector>

#include "bindings/activation.h"
#include "bindings/testing/kernels.h"
#include "kernels/linear/linear.h"

namespace decoding {

inline Norm norm_of(const Tensors& in, const py::object& gamma, const py::object& beta,
                    int64_t size, float eps, bool rms = false) {
  CHECK(!rms || beta.is_none(), "an RMS norm has no beta");
  return {in.data_or_null<float>(gamma, "gamma", {size}),
          in.data_or_null<float>(beta, "beta", {size}), eps, rms};
}

// weight: panels on the CPU, with scale and sums where they are int8; on CUDA [N, K] of T, or int8
// or the bytes of e4m3, uint8, as linear.h has them there, with scale.
template <typename T>
LinearWeight linear_weight(const Tensors& in, const py::object& weight, const py::object& scale,
                           const py::object& sums, int64_t outputs, int64_t inputs) {
  LinearWeight linear{.outputs = static_cast<int>(outputs), .inputs = static_cast<int>(inputs)};
  const TensorView view = in.view(weight, "weight");
  const bool e4m3 = in.on_cuda() && view.type() == number_type<uint8_t>;
  const auto kind = e4m3 ? WeightKind::float8 : kind_of(view, "weight");
  if (in.on_cuda() && kind && is_quantized(*kind)) {
    const std::vector<int64_t> shape = {outputs, quantized_stride(linear.inputs)};
    CHECK(sizeof(T) == 2 && view.shape() == shape, "a quantized weight on CUDA must be of [N, ",
          shape[1], "] bytes, and x of 16 bits");
    linear.data = view.data();
    linear.kind = *kind;
    linear.scale = in.data<float>(scale, "scale", {outputs});
    return linear;
  }
  if (in.on_cuda()) {
    linear.data = in.data<T>(weight, "weight", {outputs, inputs});
    return linear;
  }
  CHECK(kind && kind != WeightKind::float16, "weight must be float32, bfloat16 or int8");
  CHECK(view.shape() == panel_shape(outputs, inputs, *kind), "weight must be panels of ", outputs,
        " outputs and ", inputs, " inputs");
  CHECK((*kind == WeightKind::int8) != (scale.is_none() || sums.is_none()),
        "scale and sums belong to an int8 weight");
  linear.data = view.data();
  linear.kind = *kind;
  linear.scale = in.data_or_null<float>(scale, "scale", {outputs});
  linear.sums = in.data_or_null<int32_t>(sums, "sums", {outputs});
  return linear;
}

// scratch: uint8, on the CPU for a weight that is not float32.
template <typename T>
uint8_t* scratch_of(const Tensors& in, const py::object& scratch, const LinearParams<T>& p) {
  if (in.on_cuda() || p.weight.kind == WeightKind::float32) return nullptr;
  return in.data<uint8_t>(scratch, "scratch", {linear_scratch(p.rows, p.weight.inputs)});
}

// data: int8 [rows, stride]; scale: float32 [rows]. Null where they are None.
inline QuantizedRows quantized_rows(const Tensors& in, const py::object& data,
                                    const py::object& scale, int64_t rows) {
  return {in.data_or_null<int8_t>(data, "quantized", {rows, -1}),
          in.data_or_null<float>(scale, "quantized_scale", {rows})};
}

// On CUDA rows of y may lie apart. gated: [rows, N], of a gated product, whose y is [rows, N / 2].
template <typename T>
LinearParams<T> linear_params(const Tensors& in, const py::object& x, const py::object& weight,
                              const py::object& bias, const py::object& residual,
                              const py::object& y, const std::string& activation,
                              const py::object& gamma, const py::object& beta,
                              const py::object& normed, float eps, bool rms,
                              const py::object& scale = py::none(),
                              const py::object& sums = py::none(),
                              const py::object& gated = py::none()) {
  const auto shape = in.sizes(x, "x", 2);
  const int64_t halves = gated.is_none() ? 1 : 2;
  const int64_t rows = shape[0], inputs = shape[1], stride = in.sizes(y, "y", 2)[1];
  const int64_t outputs = in.on_cuda() ? in.sizes(weight, "weight", 2)[0] : halves * stride;
  const int64_t columns = outputs / halves;
  CHECK(columns <= stride, "y must have ", columns, " columns or more, has ", stride);
  CHECK(columns == stride || (residual.is_none() && gated.is_none()),
        "rows of y lie apart only without residual and gate");
  CHECK(gated.is_none() || (outputs % 2 == 0 && residual.is_none()),
        "a gated product has an even number of outputs and no residual");
  return {.x = in.data<T>(x, "x", {rows, inputs}),
          .norm = norm_of(in, gamma, beta, inputs, eps, rms),
          .normed = in.data_or_null<T>(normed, "normed", {rows, inputs}),
          .weight = linear_weight<T>(in, weight, scale, sums, outputs, inputs),
          .bias = in.data_or_null<float>(bias, "bias", {outputs}),
          .residual = in.data_or_null<T>(residual, "residual", {rows, outputs}),
          .y = in.data<T>(y, "y", {rows, stride}),
          .gated = in.data_or_null<T>(gated, "gated", {rows, outputs}),
          .rows = static_cast<int>(rows),
          .activation = activation_of(activation),
          .stride = columns == stride ? 0 : static_cast<int>(stride)};
}

}  // namespace decoding
