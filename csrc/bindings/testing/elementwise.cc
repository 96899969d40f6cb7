// kernels.*: operators between products: apply_rotary, gate, soft_cap and detect_overflow.
#include "bindings/testing/rotary.h"
#include "kernels/attention/decode.h"
#include "kernels/attention/head_dim.h"
#include "kernels/linear/glu.h"
#include "kernels/rows/overflow.h"
#include "kernels/rows/soft_cap.h"

namespace decoding {

using py::object;
using std::string;

namespace {

void bind_apply_rotary(py::module_& kernels) {
  kernels.def(
      "apply_rotary",
      [](object x, object positions, object frequencies, int heads, int kv_heads, int head_dim,
         bool interleaved, float factor, object q_gamma, object k_gamma, float eps, int original,
         int span, const string& isa, int threads) {
        run_kernel(
            x, isa, threads,
            [&]<typename T>(const Tensors& in) {
              const auto shape = in.sizes(x, "x", 2);
              const int64_t rows = shape[0], stride = shape[1];
              CHECK(head_dim <= kMaxHeadDim, "head_dim must be ", kMaxHeadDim, " or less");
              CHECK((heads + kv_heads) * head_dim <= stride, "x must have ", heads + kv_heads,
                    " heads of ", head_dim, " numbers, has ", stride, " columns");
              return RotaryParams<T>{
                  .x = in.data<T>(x, "x", shape),
                  .rotary = rotary_of(in, positions, frequencies, original, span, interleaved,
                                      factor, q_gamma, k_gamma, eps, rows, head_dim),
                  .rows = static_cast<int>(rows),
                  .heads = heads,
                  .kv_heads = kv_heads,
                  .head_dim = head_dim,
                  .stride = static_cast<int>(stride)};
            },
            [](auto& stream, const auto& params) { apply_rotary(stream, params); });
      },
      "x: [rows, stride], queries, keys and what stays as it is", py::arg("x"),
      py::arg("positions"), py::arg("frequencies"), py::kw_only(), py::arg("heads"),
      py::arg("kv_heads"), py::arg("head_dim"), py::arg("interleaved") = false,
      py::arg("factor") = 1.0f, py::arg("q_gamma") = py::none(), py::arg("k_gamma") = py::none(),
      py::arg("eps") = 1e-6f, py::arg("original") = 0, py::arg("span") = 0, py::arg("isa"),
      py::arg("threads"));
}

void bind_gate(py::module_& kernels) {
  kernels.def(
      "gate",
      [](object x, object y, const string& activation, const string& isa, int threads) {
        run_kernel(
            y, isa, threads,
            [&]<typename T>(const Tensors& in) {
              const auto shape = in.sizes(y, "y", 2);
              return GateParams<T>{.x = in.data<T>(x, "x", {shape[0], 2 * shape[1]}),
                                   .y = in.data<T>(y, "y", shape),
                                   .rows = static_cast<int>(shape[0]),
                                   .cols = static_cast<int>(shape[1]),
                                   .activation = activation_of(activation)};
            },
            [](auto& stream, const auto& params) { gate(stream, params); });
      },
      py::arg("x"), py::arg("y"), py::arg("activation"), py::kw_only(), py::arg("isa"),
      py::arg("threads"));
}

void bind_soft_cap(py::module_& kernels) {
  kernels.def(
      "soft_cap",
      [](object x, int cols, float cap, const string& isa, int threads) {
        run_kernel(
            x, isa, threads,
            [&]<typename T>(const Tensors& in) {
              const auto shape = in.sizes(x, "x", 2);
              CHECK(cols <= shape[1], "cols must be ", shape[1], " or less, got ", cols);
              CHECK(cap > 0, "cap must be above 0, got ", cap);
              return CapParams<T>{.x = in.data<T>(x, "x", shape),
                                  .rows = static_cast<int>(shape[0]),
                                  .cols = cols,
                                  .stride = static_cast<int>(shape[1]),
                                  .cap = cap};
            },
            [](auto& stream, const auto& params) { soft_cap(stream, params); });
      },
      "x: [rows, stride], of which the first `cols` columns count", py::arg("x"), py::arg("cols"),
      py::arg("cap"), py::kw_only(), py::arg("isa"), py::arg("threads"));
}

void bind_detect_overflow(py::module_& kernels) {
  kernels.def(
      "detect_overflow",
      [](object x, object count, object first, int tensor, object places, object active,
         object state, int beams, bool renews, const string& isa, int threads) {
        run_kernel(
            x, isa, threads,
            [&]<typename T>(const Tensors& in) {
              const auto shape = in.sizes(x, "x", 2);
              CHECK(active.is_none() == state.is_none(), "active rows need the step's state");
              OverflowParams<T> params{
                  .x = in.data<T>(x, "x", shape),
                  .count = reinterpret_cast<OverflowCount*>(in.data<int32_t>(count, "count", {2})),
                  .first = in.data<int32_t>(first, "first", {-1}),
                  .places = in.data_or_null<int32_t>(places, "places", {shape[0]}),
                  .rows = static_cast<int>(shape[0]),
                  .cols = static_cast<int>(shape[1]),
                  .beams = beams,
                  .tensor = tensor,
                  .renews = renews};
              if (!active.is_none()) {
                params.active = active_sentences(in, active, shape[0] / beams);
                params.state = step_state(in, state);
              }
              return params;
            },
            [](auto& stream, const auto& params) { detect_overflow(stream, params); });
      },
      "x: [rows, cols]; count: int32 [2], the bits of a float32 and a number; both, and `first`, "
      "are changed",
      py::arg("x"), py::arg("count"), py::arg("first"), py::kw_only(), py::arg("tensor"),
      py::arg("places") = py::none(), py::arg("active") = py::none(), py::arg("state") = py::none(),
      py::arg("beams") = 1, py::arg("renews") = false, py::arg("isa"), py::arg("threads"));
}

}  // namespace

void bind_elementwise(py::module_& kernels) {
  bind_apply_rotary(kernels);
  bind_gate(kernels);
  bind_soft_cap(kernels);
  bind_detect_overflow(kernels);
}

}  // namespace decoding
