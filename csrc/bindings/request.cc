#include "bindings/request.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/held.h"
#include "bindings/tensor.h"
#include "engine/search/options.h"
#include "engine/search/request_class.h"

namespace decoding {
namespace {

// One of several names.
void read_name(const std::string& name, EarlyStopping& to) {
  CHECK(name == "no" || name == "yes" || name == "never",
        "early_stopping must be no, yes or never, got ", name);
  to = name == "no" ? EarlyStopping::no : name == "yes" ? EarlyStopping::yes : EarlyStopping::never;
}
void read_name(const std::string& name, LengthNormalization& to) {
  CHECK(name == "power" || name == "gnmt", "length_normalization must be power or gnmt, got ",
        name);
  to = name == "gnmt" ? LengthNormalization::gnmt : LengthNormalization::power;
}

// Reads the options of a request from keyword arguments.
class Options {
 public:
  Options(const py::kwargs& given, int sentences) : given_(given), sentences_(sentences) {}

  // Calls set(b, make(value)) for all sentences, where the option is given: it has one value for
  // all of them, of which one is made, or one for each.
  template <typename T, typename Make, typename Set>
  void read(const char* name, Make&& make, Set&& set) {
    py::object value = take(name);
    if (!value) return;
    const bool is_number = PyLong_CheckExact(value.ptr()) || PyFloat_CheckExact(value.ptr());
    if (!is_number && py::hasattr(value, "tolist")) value = value.attr("tolist")();  // of arrays
    if (py::detail::make_caster<T> shared; shared.load(value, true)) {
      const auto made = make(py::detail::cast_op<T>(std::move(shared)));
      for (int b = 0; b < sentences_; ++b) set(b, made);
      return;
    }
    const auto values = value.cast<std::vector<T>>();
    CHECK(static_cast<int>(values.size()) == sentences_, name, " must be one value or ", sentences_,
          ", one for each sentence, got ", values.size());
    for (int b = 0; b < sentences_; ++b) set(b, make(values[b]));
  }
  template <typename T, typename Set>
  void read(const char* name, Set&& set) {
    read<T>(name, [](const T& value) { return value; }, set);
  }

  // None where it is not given.
  py::object tensor(const char* name) {
    const py::object value = take(name);
    return value ? value : py::none();
  }

  void check_known() const {
    for (const auto& [name, value] : given_) {
      const auto given = name.cast<std::string>();
      if (std::find(taken_.begin(), taken_.end(), given) == taken_.end()) {
        throw py::type_error("Request has no option " + given);
      }
    }
  }

 private:
  // Null where it is not given.
  py::object take(const char* name) {
    if (taken_.size() == given_.size()) return {};  // which is soon, where few are given
    auto found = py::reinterpret_borrow<py::object>(PyDict_GetItemString(given_.ptr(), name));
    if (found) taken_.push_back(name);
    return found;
  }

  const py::kwargs& given_;
  int sentences_;
  std::vector<std::string> taken_;  // of those given
};

// Those of engine/search/options.h.
void read_fields(Options& options, Request& r) {
  for_options([&](const char* name, auto&& field) {
    using T = std::remove_reference_t<decltype(field(r.configs[0]))>;
    const auto set = [&](int b, const T& value) { field(r.configs[b]) = value; };
    if constexpr (std::is_same_v<T, Span>) {
      options.read<Ids>(name, [&](const Ids& ids) { return r.put_ids(name, ids); }, set);
    } else if constexpr (std::is_enum_v<T>) {
      const auto make = [](const std::string& given) {
        T value;
        read_name(given, value);
        return value;
      };
      options.read<std::string>(name, make, set);
    } else {
      options.read<T>(name, set);
    }
  });
}

// Those that fill several fields, or other ones than they say.
void read_others(Options& options, Request& r) {
  options.read<double>("encoder_repetition_penalty", [&](int b, double penalty) {
    r.configs[b].processors.encoder_penalty = static_cast<float>(1.0 / penalty);
  });
  options.read<Biases>(
      "sequence_bias", [&](const Biases& biases) { return r.put_biases(biases); },
      [&](int b, const WordSpans& spans) {
        r.configs[b].processors.biases = spans.tokens;
        r.configs[b].processors.biased_sequences = spans.sequences;
      });
  options.read<std::vector<Ids>>(
      "bad_words", [&](const std::vector<Ids>& words) { return r.put_bad_words(words); },
      [&](int b, const WordSpans& spans) {
        r.configs[b].banned = spans.tokens;
        r.configs[b].processors.banned_sequences = spans.sequences;
      });
  options.read<int32_t>("stop_first", [&](int b, int32_t state) { r.stop_first[b] = state; });
}

// What processors look into. The tables are copied only where one does.
void read_texts(Options& options, Request& r) {
  const auto table = [&](const char* name, bool is_read, auto&& put) {
    const py::object tensor = options.tensor(name);
    if (!is_read || tensor.is_none()) return;
    const auto view = TensorView::of(tensor, name);
    const int32_t* rows = view.data<int32_t>({r.sentences(), -1});
    CHECK(view.size(1) > 0, name, " must have a column");
    put(rows, static_cast<int>(view.size(1)));
  };
  Ids first(r.sentences());
  options.read<int32_t>("prompt_first", [&](int b, int32_t column) { first[b] = column; });
  table("prompt", r.reads_row(),
        [&](const int32_t* ids, int width) { r.put_prompt(ids, width, first); });
  table("source", r.reads_source(),
        [&](const int32_t* ids, int width) { r.put_source(ids, width); });
}

void read_options(const py::kwargs& given, PyRequest& request) {
  Options options(given, request.sentences());
  read_fields(options, request);
  read_others(options, request);
  read_texts(options, request);
  request.stop_on_device = options.tensor("stop_table");
  options.check_known();
}

PyRequest request_of(int sentences, int rows_per_sentence, Search search, bool process,
                     const py::kwargs& given) {
  CHECK(sentences > 0, "sentences must be positive, got ", sentences);
  PyRequest request{Request(sentences), py::none()};
  request.rows_per_sentence = rows_per_sentence;
  request.search = std::move(search);
  request.process = process;
  read_options(given, request);
  return request;
}

// The options of a request's one sentence, for several, beside what is theirs alone.
PyRequest for_sentences(const PyRequest& shared, int sentences, bool process,
                        const py::kwargs& own) {
  CHECK(shared.sentences() == 1, "options are shared from one sentence, not from ",
        shared.sentences());
  CHECK(sentences > 0, "sentences must be positive, got ", sentences);
  PyRequest request = shared;
  request.configs.resize(sentences, shared.configs[0]);
  request.stop_first.resize(sentences);
  request.process |= process;
  read_options(own, request);
  return request;
}

void bind_searches(py::module_& module) {
  py::class_<Greedy>(module, "Greedy").def(py::init<>());
  py::class_<Sampling>(module, "Sampling").def(py::init<>());
  py::class_<Beam>(module, "Beam")
      .def(py::init<int, bool>(), py::kw_only(), py::arg("max_finished") = 0,
           py::arg("samples") = false);
  py::class_<Diverse>(module, "Diverse")
      .def(py::init<Beam, int>(), py::arg("beam"), py::kw_only(), py::arg("groups"));
  py::class_<Contrastive>(module, "Contrastive").def(py::init<>());
  py::class_<Constrained>(module, "Constrained")
      .def(py::init([](const Beam& beam, Ids depths, Ids first_edge, Ids tokens) {
             PhraseTables phrases{std::move(depths), std::move(first_edge), std::move(tokens)};
             return Constrained{beam, std::move(phrases)};
           }),
           py::arg("beam"), py::kw_only(), py::arg("depths"), py::arg("first_edge"),
           py::arg("tokens"))
      .def_property_readonly("words", [](const Constrained& c) { return c.phrases.words(); });
}

// Appends the bytes of numbers, which have no padding between them.
template <typename T>
void append(std::string& to, const std::vector<T>& numbers) {
  to.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
}

// table: int32, on the host or a GPU.
void append_table(std::string& to, const py::object& table) {
  const TensorView view(table, "stop_table");
  const size_t bytes = view.numel() * sizeof(int32_t);
  if (view.device() == "cpu") {
    to.append(static_cast<const char*>(view.data()), bytes);
    return;
  }
  const py::bytearray copy(std::string(bytes, '\0'));
  table.attr("copy_to")(copy);
  to += std::string(copy);
}

// Bytes that are equal where two requests are.
py::bytes content_of(const PyRequest& r) {
  static_assert(sizeof(SentenceConfig) == 232, "append() takes it to have no padding");
  std::string all;
  const auto number = [&](auto value) { append(all, std::vector<int32_t>{int32_t(value)}); };
  number(r.rows_per_sentence);
  number(r.process);
  number(r.search.index());
  number(r.groups());
  if (const Beam* beam = beam_of(r.search)) {
    number(beam->max_finished);
    number(beam->samples);
  }
  if (const auto* constrained = std::get_if<Constrained>(&r.search)) {
    append(all, constrained->phrases.depths);
    append(all, constrained->phrases.first_edge);
    append(all, constrained->phrases.tokens);
  }
  append(all, r.stop_first);
  append(all, r.configs);
  append(all, r.words);
  if (!r.stop_on_device.is_none()) append_table(all, r.stop_on_device);
  return all;
}

}  // namespace

Request PyRequest::on(const std::string& device) const {
  Request request = *this;
  if (!stop_on_device.is_none()) {
    const auto view = TensorView::of(stop_on_device, "stop_table", device);
    const int32_t* table = view.data<int32_t>({-1, -1});
    for (SentenceConfig& config : request.configs) config.stop_table = table;
    request.stop_states = static_cast<int32_t>(view.size(0));
    request.stop_table_owner = HeldObjects::hold(stop_on_device);
  }
  return request;
}

Batch PyBatch::view() const {
  const Tensors in("cpu");
  const auto ids = [&](const py::object& tensor, const char* name, int64_t size) {
    return in.data_or_null<int32_t>(tensor, name, {size});
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
      .def("for_sentences", &for_sentences, py::arg("sentences"), py::kw_only(),
           py::arg("process") = false)
      .def_property_readonly("processed", &PyRequest::is_processed)
      .def_property_readonly("reads_texts",
                             [](const PyRequest& r) { return r.reads_row() || r.reads_source(); })
      .def_property_readonly("guided", &PyRequest::is_guided)
      .def_property_readonly("content", &content_of)
      .def_property_readonly("steps", &PyRequest::steps)
      .def_property_readonly("max_new",
                             [](const PyRequest& r) {
                               std::vector<int32_t> each;
                               for (const auto& config : r.configs) each.push_back(config.max_new);
                               return each;
                             })
      .def_property_readonly("words", [](const PyRequest& r) { return r.words.size(); })
      .def_property_readonly("most_words", [](const PyRequest& r) {
        size_t most = 0;
        for (int b = 0; b < r.sentences(); ++b) {
          most = std::max(most, sentence_of(r, b).words.size());
        }
        return most;
      });
  py::class_<PyBatch>(module, "Batch")
      .def(py::init<py::object, py::object, py::object, py::object, py::object, py::object,
                    py::object, uintptr_t>(),
           py::kw_only(), py::arg("source") = py::none(), py::arg("source_positions") = py::none(),
           py::arg("source_offsets") = py::none(), py::arg("prompt"), py::arg("prompt_offsets"),
           py::arg("sentence_ids"), py::arg("shortlist") = py::none(), py::arg("stream") = 0);
}

}  // namespace decoding
