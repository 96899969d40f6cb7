// training.*: embeddings and dropout, and their gradients.
#include "kernels/rows/embed.h"

#include <pybind11/stl.h>

#include "bindings/training/training.h"
#include "kernels/rows/dropout.h"

namespace decoding {
namespace {

using py::object;
using std::string;

[[noreturn]] void refuse_id(int64_t id, int rows, bool position, const string& when) {
  throw py::index_error(string(position ? "positions" : "ids") + " must be 0 to " +
                        std::to_string(rows - 1) + ", got " + std::to_string(id) + when);
}

// Ids on the CPU.
void check_ids(const int64_t* ids, int64_t count, int rows, bool position) {
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= rows) refuse_id(ids[i], rows, position, "");
  }
}

// Those of a call, or, without `position`, their positions by themselves.
template <typename T>
void check_ids(const TrainingEmbedParams<T>& p) {
  check_ids(p.ids, p.rows, p.vocab, false);
  if (p.position_table == nullptr) return;
  if (p.positions != nullptr) return check_ids(p.positions, p.rows, p.max_positions, true);
}

// Reports the id of a call before that a table did not have.
IdFault* id_fault(const Tensors& in) {
  auto* fault = fault_memory<IdFault>(in);
  if (fault == nullptr) return nullptr;
  if (volatile int& found = fault->found; found != 0) {
    found = 0;
    refuse_id(fault->id, fault->rows, fault->position != 0,
              " in an earlier call on " + in.device() + ", whose row is NaN");
  }
  return fault;
}

void bind_embed(py::module_& training) {
  training.def(
      "embed",
      [](object ids, object table, object y, object positions, object position, int length,
         double scale, double dropout, object seed, const string& isa, int threads) {
        run_training(
            y, {isa, threads},
            [&]<typename T>(const Tensors& in) {
              const auto [to, rows, hidden] = in.rows(y, "y");
              const auto rows_of = [&](const object& tensor, const string& name) {
                return tensor.is_none() ? 0 : static_cast<int>(in.sizes(tensor, name, 2)[0]);
              };
              const TrainingEmbedParams<T> params{
                  .ids = in.numbers<int64_t>(ids, "ids", rows),
                  .positions = position.is_none() ? nullptr
                                                  : in.numbers<int64_t>(position, "position", rows),
                  .token_table = in.data<T>(table, "table", {-1, hidden}),
                  .position_table = in.data_or_null<T>(positions, "positions", {-1, hidden}),
                  .y = to.data<T>(),
                  .fault = id_fault(in),
                  .dropout = dropout_of(in, dropout, seed),
                  .rows = static_cast<int>(rows),
                  .hidden = static_cast<int>(hidden),
                  .vocab = rows_of(table, "table"),
                  .max_positions = rows_of(positions, "positions"),
                  .length = length,
                  .scale = scale};
              if (params.position_table != nullptr && params.positions == nullptr && rows > 0) {
                CHECK(length > 0, "without `position`, positions need a length");
                if (length > params.max_positions)
                  refuse_id(length - 1, params.max_positions, true, "");
              }
              if (!in.on_cuda()) check_ids(params);
              return params;
            },
            [](auto& stream, const auto& params) { training_embed(stream, params); });
      },
      py::arg("ids"), py::arg("table"), py::arg("y"), py::arg("positions") = py::none(),
      py::arg("position") = py::none(), py::arg("length") = 0, py::arg("scale") = 1.0,
      py::arg("dropout") = 0.0, py::arg("seed") = py::none(), py::arg("isa") = "",
      py::arg("threads") = 0);
}

void bind_embed_backward(py::module_& training) {
  training.def(
      "embed_backward",
      [](object dy, object ids, object order, object dtable, int64_t ignored, double scale,
         double dropout, object seed, const string& isa, int threads) {
        object partial = py::none();  // until the kernel is on its way
        run_training(
            dy, {isa, threads},
            [&]<typename T>(const Tensors& in) {
              const auto [from, rows, hidden] = in.rows(dy, "dy");
              CHECK(!order.is_none() || (in.on_cuda() && std::is_same_v<T, float>),
                    "order may be None on a GPU in float32 alone");
              if (in.on_cuda() && !order.is_none()) {
                partial = empty_like(dy, "float32", {2, embed_parts(rows), hidden});
              }
              return EmbedBackwardParams<T>{
                  .dy = from.data<T>(),
                  .ids = in.numbers<int64_t>(ids, "ids", rows),
                  .order = in.data_or_null<int64_t>(order, "order", {rows}),
                  .dtable = in.data<T>(dtable, "dtable", {-1, hidden}),
                  .partial = in.data_or_null<float>(partial, "partial", {-1, -1, -1}),
                  .dropout = dropout_of(in, dropout, seed),
                  .ignored = ignored,
                  .rows = static_cast<int>(rows),
                  .hidden = static_cast<int>(hidden),
                  .vocab = static_cast<int>(in.sizes(dtable, "dtable", 2)[0]),
                  .scale = scale};
            },
            [](auto& stream, const auto& params) { embed_backward(stream, params); });
      },
      py::arg("dy"), py::arg("ids"), py::arg("order"), py::arg("dtable"), py::arg("ignored") = -1,
      py::arg("scale") = 1.0, py::arg("dropout") = 0.0, py::arg("seed") = py::none(),
      py::arg("isa") = "", py::arg("threads") = 0);
}

void bind_dropout(py::module_& training) {
  training.def(
      "dropout",
      [](object x, object y, double p, object seed, const string& isa, int threads) {
        run_training(
            x, {isa, threads},
            [&]<typename T>(const Tensors& in) {
              const TensorView view = in.view(x, "x");
              return DropoutParams<T>{.x = view.data<T>(),
                                      .y = in.data<T>(y, "y", view.shape()),
                                      .dropout = dropout_of(in, p, seed),
                                      .elements = view.numel()};
            },
            [](auto& stream, const auto& params) { dropout(stream, params); });
      },
      py::arg("x"), py::arg("y"), py::arg("p"), py::arg("seed"), py::arg("isa") = "",
      py::arg("threads") = 0);
}

}  // namespace

void bind_training_embed(py::module_& training) {
  bind_embed(training);
  bind_embed_backward(training);
  bind_dropout(training);
}

}  // namespace decoding
