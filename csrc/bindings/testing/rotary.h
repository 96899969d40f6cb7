// The rotary parameters of kernels, from Python.
#pragma once

#include "bindings/testing/linear.h"
#include "kernels/attention/rotary.h"

namespace decoding {

inline Rotary rotary_of(const Tensors& in, const py::object& positions,
                        const py::object& frequencies, int original, int span, bool interleaved,
                        float factor, const py::object& q_gamma, const py::object& k_gamma,
                        float eps, int64_t rows, int64_t head_dim) {
  const bool rotates = !frequencies.is_none();
  const auto shape = rotates ? in.sizes(frequencies, "frequencies", 2) : std::vector<int64_t>{1, 0};
  const int64_t pairs = shape[1];
  CHECK(2 * pairs <= head_dim, "frequencies must be ", head_dim / 2, " or fewer");
  return {.positions = in.data_or_null<int32_t>(positions, "positions", {rows}),
          .q_norm = norm_of(in, q_gamma, py::none(), head_dim, eps, true),
          .k_norm = norm_of(in, k_gamma, py::none(), head_dim, eps, true),
          .frequencies = in.data_or_null<float>(frequencies, "frequencies", shape),
          .tables = {static_cast<int>(shape[0]), original, span},
          .factor = factor,
          .size = static_cast<int>(2 * pairs),
          .interleaved = interleaved};
}

}  // namespace decoding
