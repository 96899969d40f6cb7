#include "bindings/session.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bound.h"
#include "bindings/model.h"
#include "bindings/tensor.h"
#include "engine/search/processors.h"
#include "engine/session.h"

namespace decoding {
namespace {

EarlyStopping early_stopping(const std::string& name) {
  if (name == "no") return EarlyStopping::no;
  if (name == "yes") return EarlyStopping::yes;
  CHECK(name == "never", "early_stopping must be no, yes or never, got ", name);
  return EarlyStopping::never;
}

class PySession : public Bound<Session> {
 public:
  PySession(const py::object& spec, py::dict weights, int threads, std::string isa,
            const std::string& cache)
      : Bound(std::move(weights), threads, std::move(isa)) {
    const ModelSpec model = model_spec(spec);
    CHECK(cache == "float32" || cache == "bfloat16", "cache must be float32 or bfloat16, got ",
          cache);
    session_ = make_cpu_session(
        model, load_weights(weight_table(weights_, device_, std::nullopt), model), threads,
        this->isa, cache == "float32" ? WeightKind::float32 : WeightKind::bfloat16);
  }

  // On a GPU, in the type of the decoder's token table.
  PySession([[maybe_unused]] const py::object& spec, py::dict weights, int device)
      : Bound(std::move(weights), device) {
#ifdef DECODING_CUDA
    const ModelSpec model = model_spec(spec);
    const WeightKind kind = kind_on_gpu(weights_, device_, "decoder.embed.tokens");
    session_ = make_cuda_session(model, load_weights(weight_table(weights_, device_, kind), model),
                                 kind, device);
#else
    throw Error("this engine was built without CUDA");
#endif
  }

  void start(const py::object& source, const py::object& source_at,
             const py::object& source_offsets, const py::object& prompt,
             const py::object& prompt_offsets, const py::object& items,
             const py::object& sentence_rules, int beams, const Rules& rules, const Search& search,
             const Controls* controls, const WarpRules* warpers, const py::object& stop_table,
             const py::object& stop_first, const py::object& shortlist, int shadows,
             uintptr_t stream) {
    const auto ids = [](const py::object& tensor, const char* name) -> const int32_t* {
      return tensor.is_none() ? nullptr : TensorView::of(tensor, name).data<int32_t>({-1});
    };
    const auto listed = TensorView::of(items, "items");
    const int sentences = static_cast<int>(listed.numel());
    TensorView::of(prompt_offsets, "prompt_offsets").data<int32_t>({sentences + 1});
    if (!source_offsets.is_none()) {
      TensorView::of(source_offsets, "source_offsets").data<int32_t>({sentences + 1});
    }
    const int64_t own = sentences * int64_t{sizeof(SentenceRules)};
    const Batch batch{
        .source = ids(source, "source"),
        .source_at = ids(source_at, "source_at"),
        .source_offsets = ids(source_offsets, "source_offsets"),
        .prompt = ids(prompt, "prompt"),
        .prompt_offsets = ids(prompt_offsets, "prompt_offsets"),
        .items = listed.data<int32_t>(),
        .rules = reinterpret_cast<const SentenceRules*>(
            TensorView::of(sentence_rules, "sentence_rules").data<uint8_t>({own})),
        .stop_table =
            stop_table.is_none()
                ? nullptr
                : TensorView::of(stop_table, "stop_table", device_).data<int32_t>({-1, -1}),
        .stop_first = ids(stop_first, "stop_first"),
        .shortlist = ids(shortlist, "shortlist"),
        .sentences = sentences,
        .beams = beams,
        .shadows = shadows,
        .shortlisted = shortlist.is_none()
                           ? 0
                           : static_cast<int>(TensorView::of(shortlist, "shortlist").numel()),
        .stream = reinterpret_cast<void*>(stream)};
    CHECK(controls != nullptr || warpers == nullptr, "warpers need controls");
    const py::gil_scoped_release release;
    Request request{.rules = rules, .search = search, .processing = std::nullopt};
    if (controls != nullptr) {
      PackedControls packed = pack(*controls);
      request.processing = {packed.rules, std::move(packed.words), std::nullopt};
      if (warpers != nullptr) request.processing->warp = *warpers;
    }
    session_->start(batch, request);
  }

  bool step(int steps) {
    CHECK(steps > 0, "steps must be positive, got ", steps);
    const py::gil_scoped_release release;
    return session_->step(steps);
  }

  void compute() {
    const py::gil_scoped_release release;
    session_->compute();
  }
  void process(int stages) {
    const py::gil_scoped_release release;
    session_->process(stages);
  }
  void pick() {
    const py::gil_scoped_release release;
    session_->pick();
  }
  // ended: uint8, where the session's numbers are.
  bool accept(const py::object& ended) {
    const uint8_t* flags =
        ended.is_none() ? nullptr : TensorView::of(ended, "ended", device_).data<uint8_t>({-1});
    const py::gil_scoped_release release;
    return session_->accept(flags);
  }
  void stop_now() { session_->stop_now(); }

  void take(const py::object& tokens, const py::object& lengths, const py::object& scores,
            const py::object& sums, const py::object& slots) const {
    const auto view = TensorView::of(tokens, "tokens");
    const std::vector<int64_t> rows(view.shape().begin(), view.shape().end() - 1);
    const Results results{.tokens = view.data<int32_t>({-1, -1, -1}),
                          .lengths = TensorView::of(lengths, "lengths").data<int32_t>(rows),
                          .scores = TensorView::of(scores, "scores").data<float>(rows),
                          .sums = TensorView::of(sums, "sums").data<float>(rows),
                          .slots = TensorView::of(slots, "slots").data<int32_t>(view.shape()),
                          .width = static_cast<int>(view.size(2))};
    const py::gil_scoped_release release;
    session_->take(results);
  }

  void score(const py::object& source, const py::object& source_at,
             const py::object& source_offsets, const py::object& ids, const py::object& labels,
             const py::object& offsets, const py::object& logprobs, uintptr_t stream) {
    const auto bounds = TensorView::of(offsets, "offsets");
    const int64_t sentences = bounds.numel() - 1;
    const auto found = TensorView::of(logprobs, "logprobs");
    const auto packed = [](const py::object& tensor, const char* name, int64_t size) {
      return tensor.is_none() ? nullptr : TensorView::of(tensor, name).data<int32_t>({size});
    };
    Batch batch{};
    batch.source = packed(source, "source", -1);
    batch.source_at = packed(source_at, "source_at", -1);
    batch.source_offsets = packed(source_offsets, "source_offsets", sentences + 1);
    batch.sentences = static_cast<int>(sentences);
    batch.stream = reinterpret_cast<void*>(stream);
    const Labelled labelled{.source = batch,
                            .ids = packed(ids, "ids", found.numel()),
                            .labels = packed(labels, "labels", found.numel()),
                            .offsets = bounds.data<int32_t>({-1})};
    CHECK(labelled.tokens() == found.numel(), "offsets end with ", labelled.tokens(),
          ", there are ", found.numel(), " tokens");
    float* to = found.data<float>();
    const py::gil_scoped_release release;
    session_->score(labelled, to);
  }

  int graph_nodes() const { return session_->graph_nodes(); }
  std::string tuned() const { return session_->tuned(); }
};

void bind_options(py::module_& module) {
  py::class_<Limits>(module, "Limits")
      .def(py::init([](int batch, int beams, int source, int prompt, int target, int candidates,
                       int finished, int controls, int attentions, int labels, int hidden,
                       int phrases, int shortlist) {
             CHECK(batch > 0 && beams > 0 && source >= 0 && prompt > 0 && target > 0 &&
                       candidates > 0 && finished >= 0 && controls >= 0 && attentions >= 0 &&
                       labels >= 0 && hidden >= 0 && phrases >= 0 && shortlist >= 0,
                   "limits must be positive");
             return Limits{batch,    beams,      source, prompt, target,  candidates, finished,
                           controls, attentions, labels, hidden, phrases, shortlist};
           }),
           py::kw_only(), py::arg("batch"), py::arg("beams"), py::arg("source"), py::arg("prompt"),
           py::arg("target"), py::arg("candidates"), py::arg("finished") = 0,
           py::arg("controls") = 0, py::arg("attentions") = 0, py::arg("labels") = 0,
           py::arg("hidden") = 0, py::arg("phrases") = 0, py::arg("shortlist") = 0)
      .def_readonly("batch", &Limits::batch)
      .def_readonly("beams", &Limits::beams)
      .def_readonly("source", &Limits::source)
      .def_readonly("prompt", &Limits::prompt)
      .def_readonly("target", &Limits::target)
      .def_readonly("candidates", &Limits::candidates);
  py::class_<Buffer>(module, "Buffer")
      .def_readonly("name", &Buffer::name)
      .def_readonly("type", &Buffer::type)
      .def_readonly("shape", &Buffer::shape)
      .def_readonly("offset", &Buffer::offset)
      .def_readonly("bytes", &Buffer::bytes)
      .def_readonly("lifetime", &Buffer::lifetime);
  using Ids = std::vector<int32_t>;
  py::class_<Rules>(module, "Rules")
      .def(py::init([](int max_new, int min_new, Ids eos, int pad, Ids banned, Ids forced_last,
                       bool renormalize) {
             return Rules{max_new,    min_new,           std::move(eos),
                          pad,        std::move(banned), std::move(forced_last),
                          renormalize};
           }),
           py::kw_only(), py::arg("max_new"), py::arg("min_new") = 0, py::arg("eos") = Ids{},
           py::arg("pad") = 0, py::arg("banned") = Ids{}, py::arg("forced_last") = Ids{},
           py::arg("renormalize") = false);
  py::class_<Greedy>(module, "Greedy").def(py::init<>());
  py::class_<Sampling>(module, "Sampling").def(py::init<>());
  py::class_<Beam>(module, "Beam")
      .def(py::init([](double length_penalty, bool gnmt, const std::string& stopping, int capacity,
                       float diversity_rate, bool draws) {
             return Beam{length_penalty,
                         gnmt ? LengthNormalization::gnmt : LengthNormalization::power,
                         early_stopping(stopping),
                         capacity,
                         diversity_rate,
                         draws};
           }),
           py::kw_only(), py::arg("length_penalty") = 1.0, py::arg("gnmt") = false,
           py::arg("early_stopping") = "no", py::arg("capacity") = 0,
           py::arg("diversity_rate") = 0.0f, py::arg("draws") = false);
  py::class_<Diverse>(module, "Diverse")
      .def(py::init([](const Beam& beam, int groups, float penalty) {
             return Diverse{beam, groups, penalty};
           }),
           py::arg("beam"), py::kw_only(), py::arg("groups"), py::arg("penalty"));
  py::class_<Contrastive>(module, "Contrastive")
      .def(py::init([](float alpha) { return Contrastive{alpha}; }), py::kw_only(),
           py::arg("alpha"));
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

void bind_session(py::module_& module) {
  bind_options(module);
  bind_bound<PySession>(module, "Session")
      .def(py::init<const py::object&, py::dict, int, std::string, const std::string&>(),
           py::arg("spec"), py::arg("weights"), py::kw_only(), py::arg("threads"), py::arg("isa"),
           py::arg("cache") = "float32")
      .def(py::init<const py::object&, py::dict, int>(), py::arg("spec"), py::arg("weights"),
           py::kw_only(), py::arg("device"))
      .def_property_readonly("graph_nodes", &PySession::graph_nodes)
      .def("tuned", &PySession::tuned)
      .def("start", &PySession::start, py::arg("source"), py::arg("source_at"),
           py::arg("source_offsets"), py::arg("prompt"), py::arg("prompt_offsets"),
           py::arg("items"), py::arg("sentences"), py::arg("beams"), py::arg("rules"),
           py::arg("search"), py::kw_only(), py::arg("controls") = nullptr,
           py::arg("warpers") = nullptr, py::arg("stop_table") = py::none(),
           py::arg("stop_first") = py::none(), py::arg("shortlist") = py::none(),
           py::arg("shadows") = 0, py::arg("stream") = 0)
      .def("step", &PySession::step, py::arg("steps"))
      .def("compute", &PySession::compute)
      .def("process", &PySession::process, py::arg("stages"))
      .def("pick", &PySession::pick)
      .def("accept", &PySession::accept, py::arg("ended") = py::none())
      .def("stop_now", &PySession::stop_now)
      .def("take", &PySession::take, py::arg("tokens"), py::arg("lengths"), py::arg("scores"),
           py::arg("sums"), py::arg("slots"))
      .def("score", &PySession::score, py::arg("source"), py::arg("source_at"),
           py::arg("source_offsets"), py::arg("ids"), py::arg("labels"), py::arg("offsets"),
           py::arg("logprobs"), py::arg("stream") = 0);
}

}  // namespace decoding
