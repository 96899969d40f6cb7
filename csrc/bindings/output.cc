// decoding._C.Output: how a request ended, with its results as tables; and an engine's outputs.
#include "engine/scheduler/output.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "bindings/engine.h"
#include "bindings/held.h"
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

// Of a batch whose every request has come to its end: tokens, lengths, scores, sums and parent
// rows, as Session.fetch() has them, as wide as the longest row.
py::tuple tables(const BatchOutput& batch, int32_t fill) {
  CHECK(batch.failed() == nullptr, "batch ", batch.id, " has not come to its end");
  const int sentences = static_cast<int>(batch.ends.size()), rows = batch.ends[0].rows;
  int width = 0;
  for (const Output& end : batch.ends) width = std::max(width, end.width);
  py::array_t<int32_t> tokens({sentences, rows, width}), lengths({sentences, rows});
  py::array_t<int32_t> parent_rows({sentences, rows, width});
  py::array_t<float> scores({sentences, rows}), sums({sentences, rows});
  int32_t* to_tokens = tokens.mutable_data();
  int32_t* to_parents = parent_rows.mutable_data();
  int first_row = 0;
  for (const Output& end : batch.ends) {
    CHECK(end.rows == rows, "a batch's requests have ", rows, " rows each, not ", end.rows);
    std::copy_n(end.lengths.data(), rows, lengths.mutable_data() + first_row);
    std::copy_n(end.scores.data(), rows, scores.mutable_data() + first_row);
    std::copy_n(end.sums.data(), rows, sums.mutable_data() + first_row);
    for (int row = 0; row < rows; ++row) {
      const int length = end.lengths[row];
      const int64_t from = int64_t{row} * end.width;
      to_tokens = std::copy_n(&end.tokens[from], length, to_tokens);
      to_tokens = std::fill_n(to_tokens, width - length, fill);
      const int32_t* parents = &end.parent_rows[from];
      to_parents = std::transform(parents, parents + length, to_parents,
                                  [=](int32_t parent) { return first_row + parent; });
      to_parents = std::fill_n(to_parents, width - length, -1);
    }
    first_row += rows;
  }
  return py::make_tuple(tokens, lengths, scores, sums, parent_rows);
}

}  // namespace

py::list told_by(Scheduler& scheduler, double timeout) {
  static thread_local Outputs outputs;  // whose memory is used again
  {
    const Unlocked release;
    scheduler.wait(timeout, outputs);
  }
  HeldObjects::release_unused();  // of requests that have ended
  py::list found;
  for (const NewTokens& made : outputs.tokens) {
    found.append(py::make_tuple(made.id, token_lists(&outputs.words[made.begin], made.rows)));
  }
  for (Output& end : outputs.ends) {
    const int64_t id = end.id;
    found.append(py::make_tuple(id, std::move(end)));
  }
  for (BatchOutput& batch : outputs.batches) {
    const int64_t id = batch.id;
    found.append(py::make_tuple(id, std::move(batch)));
  }
  return found;
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
                             [](const Output& o) { return table(o.parent_rows, o.rows, o.width); })
      .def("sequences", &sequences, py::arg("prompt"), py::arg("returned"), py::arg("fill"));
  const auto kind = [](const BatchOutput& batch) {
    const Output* failed = batch.failed();
    return name_of(failed == nullptr ? OutputKind::end : failed->kind);
  };
  const auto message = [](const BatchOutput& batch) {
    const Output* failed = batch.failed();
    return failed == nullptr ? "" : failed->message;
  };
  py::class_<BatchOutput>(module, "BatchOutput")
      .def_readonly("id", &BatchOutput::id)
      .def_property_readonly("kind", kind)
      .def_property_readonly("message", message)
      .def("tables", &tables, py::arg("fill"));
}

}  // namespace decoding
