// decoding._C.Output: how a request ended, with its results as tables; and what an engine tells.
#include "engine/scheduler/output.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "bindings/engine.h"
#include "bindings/tensor.h"
#include "bindings/token_ids.h"
#include "bindings/unlocked.h"
#include "core/check.h"
#include "engine/scheduler/scheduler.h"

namespace decoding {
namespace {

template <typename T>
py::array_t<T> table(const std::vector<T>& values, int rows, int width) {
  return py::array_t<T>({rows, width}, values.data());
}

const char* name_of(OutputKind kind) {
  switch (kind) {
    case OutputKind::end:
      return "end";
    case OutputKind::cancelled:
      return "cancelled";
    case OutputKind::expired:
      return "expired";
    default:
      return "fault";
  }
}

// Of each row, as `words` has them from `next` on.
py::list token_lists(const int32_t* next, int rows) {
  py::list lists(rows);
  for (int row = 0; row < rows; ++row) {
    py::list tokens(*next++);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = *next++;
    lists[row] = std::move(tokens);
  }
  return lists;
}

// int64 [returned, P + longest], as generate() returns them: the prompt, [1, P], then the tokens of
// each row, with `fill` after its length.
py::array_t<int64_t> sequences(const Output& end, const TokenIds& prompt, int returned,
                               int64_t fill) {
  CHECK(end.kind == OutputKind::end && returned > 0 && returned <= end.rows, "output ", end.id,
        " has ", end.rows, " rows, not ", returned);
  const int longest = *std::max_element(end.lengths.begin(), end.lengths.begin() + returned);
  py::array_t<int64_t> found({py::ssize_t{returned}, prompt.size() + longest});
  int64_t* to = found.mutable_data();
  for (int row = 0; row < returned; ++row) {
    const int length = end.lengths[row];
    to = std::copy_n(prompt.data(), prompt.size(), to);
    to = std::copy_n(&end.tokens[int64_t{row} * end.width], length, to);
    to = std::fill_n(to, longest - length, fill);
  }
  return found;
}

// Writes ends of a batch's sentences, whose ids follow `first`, into its tables: as
// Session.fetch() does.
void put_ends(const std::vector<const Output*>& ends, int64_t first, const py::object& tokens,
              const py::object& lengths, const py::object& scores, const py::object& sums,
              const py::object& parent_rows) {
  const auto view = TensorView::of(tokens, "tokens");
  const std::vector<int64_t> rows(view.shape().begin(), view.shape().end() - 1);
  auto* const all_tokens = view.data<int32_t>({-1, -1, -1});
  auto* const all_parents = TensorView::of(parent_rows, "parent_rows").data<int32_t>(view.shape());
  auto* const all_lengths = TensorView::of(lengths, "lengths").data<int32_t>(rows);
  auto* const all_scores = TensorView::of(scores, "scores").data<float>(rows);
  auto* const all_sums = TensorView::of(sums, "sums").data<float>(rows);
  for (const Output* end : ends) {
    const int64_t sentence = end->id - first;
    CHECK(end->kind == OutputKind::end && sentence >= 0 && sentence < view.size(0) &&
              end->rows == view.size(1),
          "output ", end->id, " is no end of this batch's");
    for (int row = 0; row < end->rows; ++row) {
      const int64_t to = sentence * end->rows + row, from = int64_t{row} * end->width;
      const int length = end->lengths[row];
      CHECK(length <= view.size(2), "tokens must have ", length, " columns or more");
      all_lengths[to] = length;
      all_scores[to] = end->scores[row];
      all_sums[to] = end->sums[row];
      std::copy_n(&end->tokens[from], length, all_tokens + to * view.size(2));
      for (int i = 0; i < length; ++i) {
        const int32_t parent = end->parent_rows[from + i];
        all_parents[to * view.size(2) + i] = static_cast<int32_t>(sentence * end->rows) + parent;
      }
    }
  }
}

}  // namespace

py::list told_by(Scheduler& scheduler, double timeout) {
  static thread_local Outputs outputs;  // whose memory is used again
  {
    const Unlocked release;
    scheduler.wait(timeout, outputs);
  }
  py::list told;
  for (const NewTokens& made : outputs.tokens) {
    told.append(py::make_tuple(made.id, token_lists(&outputs.words[made.begin], made.rows)));
  }
  for (Output& end : outputs.ends) {
    const int64_t id = end.id;
    told.append(py::make_tuple(id, std::move(end)));
  }
  return told;
}

void bind_output(py::module_& module) {
  py::class_<Output>(module, "Output")
      .def_readonly("id", &Output::id)
      .def_readonly("message", &Output::message)
      .def_property_readonly("kind", [](const Output& o) { return name_of(o.kind); })
      .def_property_readonly("tokens",
                             [](const Output& o) { return table(o.tokens, o.rows, o.width); })
      .def_property_readonly(
          "lengths", [](const Output& o) { return py::array_t<int32_t>(o.rows, o.lengths.data()); })
      .def_property_readonly("scores",
                             [](const Output& o) {
                               return py::array_t<float>(py::ssize_t(o.scores.size()),
                                                         o.scores.data());
                             })
      .def_property_readonly("sums",
                             [](const Output& o) {
                               return py::array_t<float>(py::ssize_t(o.sums.size()), o.sums.data());
                             })
      .def_property_readonly("parent_rows",
                             [](const Output& o) {
                               return table(o.parent_rows, o.parent_rows.empty() ? 0 : o.rows,
                                            o.width);
                             })
      .def("sequences", &sequences, py::arg("prompt"), py::arg("returned"), py::arg("fill"));
  module.def("put_ends", &put_ends, py::arg("ends"), py::arg("first"), py::arg("tokens"),
             py::arg("lengths"), py::arg("scores"), py::arg("sums"), py::arg("parent_rows"));
}

}  // namespace decoding
