#include "bindings/request.h"

#include <pybind11/stl.h>

#include <set>
#include <utility>
#include <vector>

#include "bindings/tensor.h"

namespace decoding {
namespace {

// int32 [rows, width], or None.
Table table_of(const py::object& tensor, const char* name) {
  if (tensor.is_none()) return {};
  const auto view = TensorView::of(tensor, name);
  const int32_t* ids = view.data<int32_t>({-1, -1});
  return {.ids = {ids, ids + view.numel()}, .width = static_cast<int>(view.size(1))};
}

// Reads the options of a request from keyword arguments.
class Options {
 public:
  Options(const py::kwargs& given, int sentences) : given_(given), sentences_(sentences) {}

  // One number for all sentences, or one for each.
  template <typename T>
  void numbers(const char* name, Each<T>& to) {
    const py::object value = take(name);
    if (!value) return;
    to = py::isinstance<py::sequence>(value) ? each(name, value.cast<std::vector<T>>())
                                             : Each<T>(value.cast<T>());
  }

  // One list for all sentences, or one for each, nested once more.
  template <typename T>
  void lists(const char* name, Each<T>& to) {
    const py::object value = take(name);
    if (!value) return;
    py::detail::make_caster<T> shared;
    to = shared.load(value, true) ? Each<T>(py::detail::cast_op<T>(std::move(shared)))
                                  : each(name, value.cast<std::vector<T>>());
  }

  // A named value for all sentences, or one for each. value_of(name).
  template <typename T, typename ValueOf>
  void names(const char* name, Each<T>& to, ValueOf&& value_of) {
    const py::object value = take(name);
    if (!value) return;
    if (py::isinstance<py::str>(value)) {
      to = value_of(value.cast<std::string>());
      return;
    }
    std::vector<T> values;
    for (const auto& one : value.cast<std::vector<std::string>>()) values.push_back(value_of(one));
    to = each(name, std::move(values));
  }

  py::object tensor(const char* name) {
    const py::object value = take(name, false);
    return value ? value : py::none();
  }

  void check_known() const {
    for (const auto& [name, value] : given_) {
      if (taken_.count(name.cast<std::string>()) == 0) {
        throw py::type_error("Request has no option " + name.cast<std::string>());
      }
    }
  }

 private:
  // Null where it is not given. as_list: numbers of arrays and tensors.
  py::object take(const char* name, bool as_list = true) {
    taken_.insert(name);
    if (!given_.contains(name)) return {};
    const py::object value = given_[name];
    return as_list && py::hasattr(value, "tolist") ? value.attr("tolist")() : value;
  }

  template <typename T>
  Each<T> each(const char* name, std::vector<T> values) const {
    CHECK(static_cast<int>(values.size()) == sentences_, name, " must be one value or ", sentences_,
          ", one for each sentence, got ", values.size());
    return Each<T>(std::move(values));
  }

  const py::kwargs& given_;
  int sentences_;
  std::set<std::string> taken_;
};

EarlyStopping early_stopping(const std::string& name) {
  if (name == "no") return EarlyStopping::no;
  if (name == "yes") return EarlyStopping::yes;
  CHECK(name == "never", "early_stopping must be no, yes or never, got ", name);
  return EarlyStopping::never;
}

int32_t is_gnmt(const std::string& normalization) {
  CHECK(normalization == "power" || normalization == "gnmt",
        "length_normalization must be power or gnmt, got ", normalization);
  return normalization == "gnmt";
}

void read_rules(Options& options, Request& r) {
  options.numbers("max_new", r.max_new);
  options.numbers("min_new", r.min_new);
  options.lists("eos", r.eos);
  options.numbers("pad", r.pad);
  options.numbers("forced_first", r.forced_first);
  options.lists("forced_last", r.forced_last);
  options.numbers("seed", r.seed);
  options.numbers("random_first", r.random_first);
  options.numbers("stop_first", r.stop_first);
  options.numbers("length_penalty", r.length_penalty);
  options.names("length_normalization", r.gnmt, is_gnmt);
  options.names("early_stopping", r.early_stopping, early_stopping);
  options.numbers("diversity_rate", r.diversity_rate);
  options.numbers("diversity_penalty", r.diversity_penalty);
  options.numbers("penalty_alpha", r.penalty_alpha);
}

void read_filters(Options& options, Request& r) {
  options.numbers("temperature", r.temperature);
  options.numbers("top_k", r.top_k);
  options.numbers("top_p", r.top_p);
  options.numbers("top_h", r.top_h);
  options.numbers("min_p", r.min_p);
  options.numbers("typical_p", r.typical_p);
  options.numbers("epsilon_cutoff", r.epsilon_cutoff);
  options.numbers("eta_cutoff", r.eta_cutoff);
  options.numbers("min_tokens_to_keep", r.min_tokens_to_keep);
}

void read_processors(Options& options, Request& r) {
  options.numbers("guidance_scale", r.guidance_scale);
  options.lists("sequence_bias", r.sequence_bias);
  options.numbers("encoder_repetition_penalty", r.encoder_repetition_penalty);
  options.numbers("repetition_penalty", r.repetition_penalty);
  options.numbers("no_repeat_ngram_size", r.no_repeat_ngram_size);
  options.numbers("encoder_no_repeat_ngram_size", r.encoder_no_repeat_ngram_size);
  options.lists("bad_words", r.bad_words);
  options.numbers("remove_invalid_values", r.remove_invalid_values);
  options.numbers("decay_start", r.decay_start);
  options.numbers("decay_factor", r.decay_factor);
  options.lists("suppress_tokens", r.suppress_tokens);
  options.lists("begin_suppress_tokens", r.begin_suppress_tokens);
  options.numbers("renormalize", r.renormalize);
  options.numbers("prompt_first", r.prompt_first);
}

PyRequest request_of(int sentences, int rows_per_sentence, Search search, bool process,
                     const py::kwargs& given) {
  CHECK(sentences > 0, "sentences must be positive, got ", sentences);
  PyRequest request;
  request.sentences = sentences;
  request.rows_per_sentence = rows_per_sentence;
  request.search = std::move(search);
  request.process = process;
  Options options(given, sentences);
  read_rules(options, request);
  read_filters(options, request);
  read_processors(options, request);
  request.stop_on_device = options.tensor("stop_table");
  request.prompt = table_of(options.tensor("prompt"), "prompt");
  request.source = table_of(options.tensor("source"), "source");
  options.check_known();
  CHECK(!request.reads_row() || request.prompt.width > 0, "prompt must be given");
  CHECK(!request.reads_source() || request.source.width > 0, "source must be given");
  return request;
}

void bind_searches(py::module_& module) {
  py::class_<Greedy>(module, "Greedy").def(py::init<>());
  py::class_<Sampling>(module, "Sampling").def(py::init<>());
  py::class_<Beam>(module, "Beam")
      .def(py::init([](int max_finished, bool samples) { return Beam{max_finished, samples}; }),
           py::kw_only(), py::arg("max_finished") = 0, py::arg("samples") = false);
  py::class_<Diverse>(module, "Diverse")
      .def(py::init([](const Beam& beam, int groups) { return Diverse{beam, groups}; }),
           py::arg("beam"), py::kw_only(), py::arg("groups"));
  py::class_<Contrastive>(module, "Contrastive").def(py::init<>());
  py::class_<Constrained>(module, "Constrained")
      .def(py::init([](const Beam& beam, Ids heights, Ids first_edge, Ids tokens) {
             PhraseTables phrases{std::move(heights), std::move(first_edge), std::move(tokens)};
             return Constrained{beam, std::move(phrases)};
           }),
           py::arg("beam"), py::kw_only(), py::arg("heights"), py::arg("first_edge"),
           py::arg("tokens"))
      .def_property_readonly("words", [](const Constrained& c) { return c.phrases.words(); });
}

}  // namespace

Request PyRequest::on(const std::string& device) const {
  Request request = *this;
  if (!stop_on_device.is_none()) {
    request.stop_table =
        TensorView::of(stop_on_device, "stop_table", device).data<int32_t>({-1, -1});
  }
  return request;
}

Batch PyBatch::view() const {
  const auto ids = [](const py::object& tensor, const char* name, int64_t size) -> const int32_t* {
    return tensor.is_none() ? nullptr : TensorView::of(tensor, name).data<int32_t>({size});
  };
  const auto count = [](const py::object& tensor, const char* name) {
    return tensor.is_none() ? 0 : static_cast<int>(TensorView::of(tensor, name).numel());
  };
  const int sentences = count(sentence_ids, "sentence_ids");
  return {.source = ids(source, "source", -1),
          .source_positions = ids(source_positions, "source_positions", -1),
          .source_offsets = ids(source_offsets, "source_offsets", sentences + 1),
          .prompt = ids(prompt, "prompt", -1),
          .prompt_offsets = ids(prompt_offsets, "prompt_offsets", sentences + 1),
          .sentence_ids = ids(sentence_ids, "sentence_ids", -1),
          .shortlist = ids(shortlist, "shortlist", -1),
          .sentences = sentences,
          .shortlisted = count(shortlist, "shortlist"),
          .stream = reinterpret_cast<void*>(stream)};
}

void bind_request(py::module_& module) {
  bind_searches(module);
  py::class_<PyRequest>(module, "Request")
      .def(py::init(&request_of), py::kw_only(), py::arg("sentences"),
           py::arg("rows_per_sentence") = 1, py::arg("search") = Greedy{},
           py::arg("process") = false)
      .def_property_readonly("processed", &PyRequest::is_processed)
      .def_property_readonly("guided", &PyRequest::is_guided)
      .def_property_readonly("steps", &PyRequest::steps)
      .def_property_readonly("words", [](const PyRequest& r) { return pack(r).words.size(); });
  py::class_<PyBatch>(module, "Batch")
      .def(py::init([](py::object source, py::object source_positions, py::object source_offsets,
                       py::object prompt, py::object prompt_offsets, py::object sentence_ids,
                       py::object shortlist, uintptr_t stream) {
             return PyBatch{source,         source_positions, source_offsets, prompt,
                            prompt_offsets, sentence_ids,     shortlist,      stream};
           }),
           py::kw_only(), py::arg("source") = py::none(), py::arg("source_positions") = py::none(),
           py::arg("source_offsets") = py::none(), py::arg("prompt"), py::arg("prompt_offsets"),
           py::arg("sentence_ids"), py::arg("shortlist") = py::none(), py::arg("stream") = 0);
}

}  // namespace decoding
