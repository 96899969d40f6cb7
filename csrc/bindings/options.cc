#include "bindings/options.h"

#include <pybind11/stl.h>

#include <utility>
#include <vector>

#include "bindings/tensor.h"
#include "engine/search/processors.h"
#include "kernels/search/filters.h"

namespace decoding {
namespace {

// int32 [rows, width], or None.
Table table_of(const py::object& tensor, const char* name) {
  if (tensor.is_none()) return {};
  const auto view = TensorView::of(tensor, name);
  const int32_t* ids = view.data<int32_t>({-1, -1});
  return {.ids = {ids, ids + view.numel()}, .width = static_cast<int>(view.size(1))};
}

Controls controls_of(float guidance_scale, decltype(Controls::sequence_bias) sequence_bias,
                     double encoder_repetition_penalty, float repetition_penalty,
                     int no_repeat_ngram_size, int encoder_no_repeat_ngram_size,
                     std::vector<Controls::Ids> bad_words, Controls::Ids eos, int min_new,
                     Controls::Ids forced_last, bool remove_invalid_values, int decay_start,
                     double decay_factor, Controls::Ids suppress_tokens,
                     Controls::Ids begin_suppress_tokens, bool renormalize,
                     const py::object& prompt, Controls::Ids prompt_first,
                     const py::object& source) {
  Controls controls{.guidance_scale = guidance_scale,
                    .sequence_bias = std::move(sequence_bias),
                    .encoder_repetition_penalty = encoder_repetition_penalty,
                    .repetition_penalty = repetition_penalty,
                    .no_repeat_ngram_size = no_repeat_ngram_size,
                    .encoder_no_repeat_ngram_size = encoder_no_repeat_ngram_size,
                    .bad_words = std::move(bad_words),
                    .eos = std::move(eos),
                    .min_new = min_new,
                    .forced_last = std::move(forced_last),
                    .remove_invalid_values = remove_invalid_values,
                    .decay_start = decay_start,
                    .decay_factor = decay_factor,
                    .suppress_tokens = std::move(suppress_tokens),
                    .begin_suppress_tokens = std::move(begin_suppress_tokens),
                    .renormalize = renormalize,
                    .prompt = table_of(prompt, "prompt"),
                    .source = table_of(source, "source"),
                    .prompt_first = std::move(prompt_first)};
  CHECK(!controls.reads_row() || controls.prompt.width > 0, "prompt must be given");
  CHECK(!controls.reads_source() || controls.source.width > 0, "source must be given");
  CHECK(controls.prompt_first.size() * controls.prompt.width == controls.prompt.ids.size(),
        "prompt_first must have one column per prompt, got ", controls.prompt_first.size());
  return controls;
}

void bind_controls(py::module_& module) {
  const Controls off;
  const py::kw_only named;
  py::class_<Controls>(module, "Controls")
      .def(py::init(&controls_of), named, py::arg("guidance_scale") = off.guidance_scale,
           py::arg("sequence_bias") = off.sequence_bias,
           py::arg("encoder_repetition_penalty") = off.encoder_repetition_penalty,
           py::arg("repetition_penalty") = off.repetition_penalty,
           py::arg("no_repeat_ngram_size") = off.no_repeat_ngram_size,
           py::arg("encoder_no_repeat_ngram_size") = off.encoder_no_repeat_ngram_size,
           py::arg("bad_words") = off.bad_words, py::arg("eos") = off.eos,
           py::arg("min_new") = off.min_new, py::arg("forced_last") = off.forced_last,
           py::arg("remove_invalid_values") = off.remove_invalid_values,
           py::arg("decay_start") = off.decay_start, py::arg("decay_factor") = off.decay_factor,
           py::arg("suppress_tokens") = off.suppress_tokens,
           py::arg("begin_suppress_tokens") = off.begin_suppress_tokens,
           py::arg("renormalize") = off.renormalize, py::arg("prompt") = py::none(),
           py::arg("prompt_first") = off.prompt_first, py::arg("source") = py::none())
      .def_property_readonly("words",
                             [](const Controls& controls) { return pack(controls).words.size(); });
}

void bind_warpers(py::module_& module) {
  const py::kw_only named;
  py::class_<WarpRules>(module, "Warpers")
      .def(py::init(
               [](float top_h, float min_p, float typical_p, float epsilon, float eta, int keep) {
                 CHECK(keep > 0, "keep must be positive, got ", keep);
                 return WarpRules{top_h, min_p, typical_p, epsilon, eta, keep};
               }),
           named, py::arg("top_h") = 0.0f, py::arg("min_p") = 0.0f, py::arg("typical_p") = 1.0f,
           py::arg("epsilon") = 0.0f, py::arg("eta") = 0.0f, py::arg("keep") = 1);
}

}  // namespace

void bind_processing(py::module_& module) {
  bind_controls(module);
  bind_warpers(module);
}

}  // namespace decoding
