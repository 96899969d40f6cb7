// Weights on their way to the engine (kernels/linear/pack.h).
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>
#include <vector>

#include "bindings/model.h"
#include "bindings/tensor.h"
#include "bindings/unlocked.h"
#include "kernels/cpu/isa.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/pack.h"

namespace decoding {
namespace {

WeightKind stored_kind(const TensorView& weight) {
  const auto kind = kind_of(weight, "weight");
  CHECK(kind && !is_quantized(*kind), "weight must be float32, float16 or bfloat16, got ",
        weight.type());
  return *kind;
}

// Of a weight [N, K].
WeightKind linear_kind(const TensorView& weight) {
  const WeightKind kind = stored_kind(weight);
  CHECK(weight.shape().size() == 2, "weight must be [N, K], has ", weight.shape().size(),
        " dimensions");
  return kind;
}

// Runs op(stream) on as many threads as `bytes` pay for.
template <typename Op>
void run(int64_t bytes, int threads, const Op& op) {
  constexpr int64_t kBytesOfAThread = 1 << 20;
  const Unlocked release;
  cpu::Team team(static_cast<int>(std::clamp<int64_t>(bytes / kBytesOfAThread, 1, threads)));
  cpu::with_isa(cpu::instruction_sets().front(), [&]<cpu::Isa isa>(cpu::Features features) {
    team.run([&](int rank) {
      cpu::Stream<isa> stream(team, rank, features);
      op(stream);
    });
  });
}

bool fill_panels(const py::object& panels, const py::object& weight, int64_t first,
                 const py::object& scale, const py::object& sums, int threads) {
  const auto from = TensorView::of(weight, "weight"), to = TensorView::of(panels, "panels");
  const WeightKind stored = linear_kind(from);
  const auto kind = kind_of(to, "panels");
  CHECK(kind && *kind != WeightKind::float16 && *kind != WeightKind::float8, "panels cannot be ",
        to.type());
  const int64_t rows = from.size(0), inputs = from.size(1);
  const auto shape = panel_shape(first + rows, inputs, *kind);
  CHECK(first >= 0 && to.shape().size() == 3 && to.size(0) >= shape[0] && to.size(1) == shape[1] &&
            to.size(2) == shape[2],
        "panels must have room for ", first + rows, " outputs of ", inputs, " inputs");
  std::atomic<bool> finite{true};
  PackParams p{.rows = from.data(),
               .stored = stored,
               .count = rows,
               .inputs = inputs,
               .first = first,
               .panels = to.data(),
               .kind = *kind,
               .finite = &finite};
  if (*kind == WeightKind::int8) {
    const auto scales = TensorView::of(scale, "scale"), totals = TensorView::of(sums, "sums");
    CHECK(std::min(scales.numel(), totals.numel()) >= first + rows, "scale and sums must be [N]");
    p.scale = scales.data<float>(), p.sums = totals.data<int32_t>();
  }
  run(rows * inputs * 4, threads, [&](auto& stream) { pack(stream, p); });
  return finite;
}

void interleave_panels(const py::object& rows, const py::object& panels, int64_t inputs,
                       int threads) {
  const auto from = TensorView::of(panels, "panels"), to = TensorView::of(rows, "rows");
  const auto is_int8 = [](const TensorView& view, const char* name) {
    return kind_of(view, name) == WeightKind::int8;
  };
  CHECK(is_int8(from, "panels") && is_int8(to, "rows"), "panels and rows must be int8, got ",
        from.type(), " and ", to.type());
  CHECK(to.shape().size() == 2 && to.size(1) == quantized_stride(static_cast<int>(inputs)),
        "rows must have ", quantized_stride(static_cast<int>(inputs)), " bytes");
  CHECK(from.shape() == panel_shape(to.size(0), inputs, WeightKind::int8),
        "panels must be those of ", to.size(0), " outputs and ", inputs, " inputs");
  const InterleaveParams p{static_cast<const uint32_t*>(from.data()), to.size(0), inputs,
                           static_cast<int8_t*>(to.data())};
  run(from.numel(), threads, [&](auto& stream) { interleave(stream, p); });
}

bool convert_numbers(const py::object& to, const py::object& weight, int threads) {
  const auto from = TensorView::of(weight, "weight"), view = TensorView::of(to, "to");
  const WeightKind stored = stored_kind(from);
  const auto kind = kind_of(view, "to");
  CHECK(kind && !is_quantized(*kind), "to must be float32, float16 or bfloat16, got ", view.type());
  CHECK(view.numel() == from.numel(), "to has ", view.numel(), " numbers, the weight ",
        from.numel());
  std::atomic<bool> finite{true};
  const ConvertParams p{from.data(), stored, from.numel(), view.data(), *kind, &finite};
  run(from.numel() * 4, threads, [&](auto& stream) { convert(stream, p); });
  return finite;
}

std::pair<double, double> sums_of_squares(const py::object& weight, int threads) {
  const auto from = TensorView::of(weight, "weight");
  const WeightKind stored = linear_kind(from);
  std::vector<double> steps(threads), length(threads);
  const SquaresParams p{from.data(),  stored,        from.size(0),
                        from.size(1), length.data(), steps.data()};
  run(from.numel() * 4, threads, [&](auto& stream) { squares(stream, p); });
  return {std::reduce(steps.begin(), steps.end()), std::reduce(length.begin(), length.end())};
}

}  // namespace

void bind_panels(py::module_& module) {
  module.def("fill_panels", &fill_panels, py::arg("panels"), py::arg("weight"), py::arg("first"),
             py::arg("scale") = py::none(), py::arg("sums") = py::none(), py::kw_only(),
             py::arg("threads"));
  module.def("interleave", &interleave_panels, py::arg("rows"), py::arg("panels"),
             py::arg("inputs"), py::kw_only(), py::arg("threads"));
  module.def("convert", &convert_numbers, py::arg("to"), py::arg("weight"), py::kw_only(),
             py::arg("threads"));
  module.def("squares", &sums_of_squares, py::arg("weight"), py::kw_only(), py::arg("threads"));
}

}  // namespace decoding
