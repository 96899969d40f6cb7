// decoding._kernels: the kernels of guidance and of contrastive search that look at histories.
#include "kernels/search/guidance.h"

#include "bindings/testing/kernels.h"
#include "bindings/testing/placed.h"
#include "kernels/search/contrastive.h"

namespace decoding {
namespace {

using py::object;
using std::string;

// Of as many sentences as `active` has room for; the state says how many of them count.
py::tuple run_unconditional_rows(const object& active, const object& state, const object& ids,
                                 const object& unconditional, const object& unconditional_ids,
                                 const object& prompt_lengths, const object& cache_indirection,
                                 const string& isa, int threads) {
  const Tensors in(py::str(active.attr("device")));
  const int64_t sentences = in.sizes(active, "active", 2)[0], rows = in.sizes(ids, "ids", 1)[0];
  const auto table = in.sizes(cache_indirection, "cache_indirection", 3);
  const object all_state = empty_like(active, "int32", {2});
  const object all_active = empty_like(active, "int32", {2 * sentences, 3});
  const object all_ids = empty_like(active, "int32", {2 * rows});
  const object all_positions = empty_like(active, "int32", {2 * rows});
  const UnconditionalRowsParams params{
      .state = step_state(in, state),
      .active = active_sentences(in, active),
      .ids = in.data<int32_t>(ids, "ids", {rows}),
      .unconditional = in.data<int32_t>(unconditional, "unconditional", {-1}),
      .unconditional_ids = in.data<int32_t>(unconditional_ids, "unconditional_ids", {-1}),
      .prompt_lengths = in.data<int32_t>(prompt_lengths, "prompt_lengths", {-1}),
      .cache_indirection = in.data<int32_t>(cache_indirection, "cache_indirection", {2, -1, -1}),
      .all_state = step_state(in, all_state),
      .all_active = active_sentences(in, all_active),
      .all_ids = in.data<int32_t>(all_ids, "all_ids", {2 * rows}),
      .all_positions = in.data<int32_t>(all_positions, "all_positions", {2 * rows}),
      .sentences = static_cast<int>(sentences),
      .beams = static_cast<int>(rows / sentences),
      .total_rows = static_cast<int>(table[1]),
      .history = static_cast<int>(table[2])};
  run_on(active, isa, threads, [&](auto& stream) { unconditional_rows(stream, params); });
  return py::make_tuple(all_state, all_active, all_ids, all_positions);
}

object run_contrast(const object& x, const object& hidden, const object& active,
                    const object& state, const object& cache_indirection, const object& prompt,
                    const object& prompt_offsets, const string& isa, int threads) {
  const auto shape = Tensors(py::str(x.attr("device"))).sizes(x, "x", 2);
  const object similarity = empty_like(x, "float32", {shape[0]});
  run_kernel(
      x, isa, threads,
      [&]<typename T>(const Tensors& in) {
        const auto kept = in.sizes(hidden, "hidden", 3);
        const int sentences = static_cast<int>(in.sizes(active, "active", 2)[0]);
        const int beams = static_cast<int>(shape[0]) / sentences;
        return ContrastParams<T>{
            .x = in.data<T>(x, "x", shape),
            .hidden = in.data<T>(hidden, "hidden", {-1, -1, shape[1]}),
            .prompt = in.data_or_null<T>(prompt, "prompt", {-1, shape[1]}),
            .prompt_offsets = in.data_or_null<int32_t>(prompt_offsets, "prompt_offsets", {-1}),
            .cache_indirection =
                in.data<int32_t>(cache_indirection, "cache_indirection", {2, kept[0], kept[1]}),
            .active = active_sentences(in, active),
            .state = step_state(in, state),
            .similarity = in.data<float>(similarity, "similarity", {shape[0]}),
            .sentences = sentences,
            .beams = beams,
            .size = static_cast<int>(shape[1]),
            .total_rows = static_cast<int>(kept[0]),
            .history = static_cast<int>(kept[1]),
            .slots = beams};
      },
      [](auto& stream, const auto& params) { contrast(stream, params); });
  return similarity;
}

}  // namespace

void bind_guidance(py::module_& kernels) {
  const py::arg active("active"), state("state"), isa("isa"), threads("threads");
  const py::arg table("cache_indirection");
  const py::kw_only named;
  kernels.def("unconditional_rows", &run_unconditional_rows,
              "(state, active, ids, positions) of all sentences; active: [sentences, 3].", active,
              state, py::arg("ids"), py::arg("unconditional"), py::arg("unconditional_ids"),
              py::arg("prompt_lengths"), table, named, isa, threads);
  kernels.def("contrast", &run_contrast,
              "Each row's similarity to its context; `hidden` [total_rows, history, H] keeps x.",
              py::arg("x"), py::arg("hidden"), active, state, table, named,
              py::arg("prompt") = py::none(), py::arg("prompt_offsets") = py::none(), isa, threads);
}

}  // namespace decoding
