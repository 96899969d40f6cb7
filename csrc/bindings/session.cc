#include "bindings/session.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bound.h"
#include "bindings/collective.h"
#include "bindings/model.h"
#include "bindings/request.h"
#include "bindings/tensor.h"
#include "bindings/unlocked.h"
#include "engine/session.h"
#include "kernels/cpu/collective.h"

namespace decoding {
namespace {

class PySession : public Bound<Session> {
 public:
  PySession(const py::object& spec, py::dict weights, int threads, std::string isa,
            const std::string& cache, std::shared_ptr<cpu::Collective> collective,
            bool detect_overflow)
      : Bound(std::move(weights), threads, std::move(isa)) {
    const ModelSpec model = model_spec(spec);
    CHECK(cache == "float32" || cache == "bfloat16", "cache must be float32 or bfloat16, got ",
          cache);
    session_ = make_cpu_session(
        model, load_weights(weight_table(weights_, device_, std::nullopt), model), threads,
        this->isa, cache == "float32" ? WeightKind::float32 : WeightKind::bfloat16,
        std::move(collective), detect_overflow);
  }

  // On a GPU, in the type of the decoder's token table.
  PySession([[maybe_unused]] const py::object& spec, py::dict weights, int device,
            [[maybe_unused]] const std::string& cache,
            [[maybe_unused]] std::shared_ptr<CudaCollective> collective,
            [[maybe_unused]] bool deterministic, [[maybe_unused]] bool detect_overflow)
      : Bound(std::move(weights), device) {
#ifdef DECODING_CUDA
    const ModelSpec model = model_spec(spec);
    const WeightKind kind = kind_on_gpu(weights_, device_, "decoder.embed.tokens");
    session_ = make_cuda_session(model, load_weights(weight_table(weights_, device_, kind), model),
                                 kind, cache_kind_on_gpu(cache, kind), device,
                                 std::move(collective), deterministic, detect_overflow);
#else
    throw Error("this engine was built without CUDA");
#endif
  }

  void start(const PyRequest& request, const PyBatch& batch) {
    Request asked = request.on(device_);
    const Batch texts = batch.view();
    stream_ = reinterpret_cast<uintptr_t>(texts.stream);
    const Unlocked release;
    session_->start(texts, std::move(asked));
  }

  bool step(int steps) {
    CHECK(steps > 0, "steps must be positive, got ", steps);
    return session_->step(steps);
  }

  void compute() { session_->compute(); }
  void process_logits(int stages) { session_->process_logits(stages); }
  void select() { session_->select(); }
  // ended: uint8, where the session's numbers are.
  bool update(const py::object& ended) {
    const uint8_t* flags =
        ended.is_none() ? nullptr : TensorView::of(ended, "ended", device_).data<uint8_t>({-1});
    const Unlocked release;
    return session_->update(flags);
  }
  void stop_now() { session_->stop_now(); }

  // Views of the pool.
  py::dict state() {
    const auto views = [&] {
      const Unlocked release;
      return session_->state();
    }();
    const auto begin = reinterpret_cast<uintptr_t>(TensorView::of(pool_, "pool", device_).data());
    py::dict state;
    for (const StateArray& view : views) {
      const auto at = static_cast<int64_t>(reinterpret_cast<uintptr_t>(view.data) - begin);
      state[view.name.c_str()] = device_ == "cpu" ? array_at(view, at) : on_device(view, at);
    }
    return state;
  }

  void fetch(const py::object& tokens, const py::object& lengths, const py::object& scores,
             const py::object& sums, const py::object& parent_rows) const {
    const auto view = TensorView::of(tokens, "tokens");
    const std::vector<int64_t> rows(view.shape().begin(), view.shape().end() - 1);
    const Results results{
        .tokens = view.data<int32_t>({-1, -1, -1}),
        .lengths = TensorView::of(lengths, "lengths").data<int32_t>(rows),
        .scores = TensorView::of(scores, "scores").data<float>(rows),
        .sums = TensorView::of(sums, "sums").data<float>(rows),
        .parent_rows = TensorView::of(parent_rows, "parent_rows").data<int32_t>(view.shape()),
        .width = static_cast<int>(view.size(2))};
    const Unlocked release;
    session_->fetch(results);
  }

  void score(const py::object& source, const py::object& source_positions,
             const py::object& source_offsets, const py::object& sources, const py::object& ids,
             const py::object& labels, const py::object& offsets, const py::object& logprobs,
             const py::object& ranks, const py::object& argmax, uintptr_t stream) {
    const Labelled labelled = labelled_of(source, source_positions, source_offsets, sources, ids,
                                          labels, offsets, stream);
    const int tokens = labelled.tokens();
    float* to_logprobs = TensorView::of(logprobs, "logprobs").data<float>({tokens});
    int32_t* to_ranks = TensorView::of(ranks, "ranks").data<int32_t>({tokens});
    int32_t* to_argmax = TensorView::of(argmax, "argmax").data<int32_t>({tokens});
    const Unlocked release;
    std::vector<LabelScore> found(tokens);
    session_->score(labelled, found.data(), nullptr);
    for (int i = 0; i < tokens; ++i) {
      to_logprobs[i] = found[i].logprob;
      to_ranks[i] = found[i].rank;
      to_argmax[i] = found[i].argmax;
    }
  }

  void attend(const py::object& source, const py::object& source_positions,
              const py::object& source_offsets, const py::object& sources, const py::object& ids,
              const py::object& offsets, const py::object& attentions, uintptr_t stream) {
    const Labelled labelled = labelled_of(source, source_positions, source_offsets, sources, ids,
                                          py::none(), offsets, stream);
    float* to = TensorView::of(attentions, "attentions")
                    .data<float>({labelled.tokens(), longest_source(labelled.source)});
    const Unlocked release;
    session_->score(labelled, nullptr, to);
  }

  std::string first_overflow(int sentence) const { return session_->first_overflow(sentence); }
  int graph_nodes() const { return session_->graph_nodes(); }
  std::string tuned() const { return session_->tuned(); }

 private:
  // Of arrays on the host.
  static Labelled labelled_of(const py::object& source, const py::object& source_positions,
                              const py::object& source_offsets, const py::object& sources,
                              const py::object& ids, const py::object& labels,
                              const py::object& offsets, uintptr_t stream) {
    const auto bounds = TensorView::of(offsets, "offsets");
    const int64_t sentences = bounds.numel() - 1, tokens = TensorView::of(ids, "ids").numel();
    const Tensors in("cpu");
    const auto packed = [&](const py::object& tensor, const char* name, int64_t size) {
      return in.data_or_null<int32_t>(tensor, name, {size});
    };
    Batch batch{};
    batch.source = packed(source, "source", -1);
    batch.source_positions = packed(source_positions, "source_positions", -1);
    batch.source_offsets = packed(source_offsets, "source_offsets", -1);
    if (batch.source_offsets != nullptr) {
      batch.sentences =
          static_cast<int>(TensorView::of(source_offsets, "source_offsets").numel()) - 1;
    }
    batch.stream = reinterpret_cast<void*>(stream);
    const Labelled labelled{.source = batch,
                            .sources = packed(sources, "sources", sentences),
                            .ids = packed(ids, "ids", tokens),
                            .labels = packed(labels, "labels", tokens),
                            .offsets = bounds.data<int32_t>({-1}),
                            .sentences = static_cast<int>(sentences)};
    CHECK(labelled.tokens() == tokens, "offsets end with ", labelled.tokens(), ", there are ",
          tokens, " tokens");
    return labelled;
  }

  // at: its byte in the pool.
  py::object array_at(const StateArray& view, int64_t at) const {
    const py::module_ numpy = py::module_::import("numpy");
    const auto size = numpy.attr("dtype")(view.type).attr("itemsize").cast<int64_t>();
    std::vector<int64_t> strides = view.strides;
    for (int64_t& stride : strides) stride *= size;
    return numpy.attr("ndarray")(py::cast(view.shape), view.type, pool_, at, py::cast(strides));
  }

  py::object on_device(const StateArray& view, int64_t at) const {
    return pool_.attr("view")(view.type, view.shape, py::arg("strides") = view.strides,
                              py::arg("offset") = at, py::arg("stream") = stream_);
  }

  uintptr_t stream_ = 0;  // of the call
};

void bind_limits(py::module_& module) {
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
      .def_readonly("lifetime", &Buffer::lifetime)
      .def(py::pickle(
          [](const Buffer& b) {
            return std::make_tuple(b.name, b.type, b.shape, b.offset, b.bytes, b.lifetime);
          },
          [](const std::tuple<std::string, std::string, std::vector<int64_t>, size_t, size_t,
                              std::vector<int>>& fields) {
            return std::make_from_tuple<Buffer>(fields);
          }));
}

constexpr double kPoll = 0.1;  // seconds between two checks whether Ctrl-C was pressed

// Begins a call, which Ctrl-C ends while other ranks have not come to it.
void begin(cpu::Collective& ranks, uint64_t digest) {
  ranks.begin(digest);
  const auto wait = [&] {
    const Unlocked release;
    return ranks.wait(kPoll);
  };
  while (!wait()) {
    if (PyErr_CheckSignals() == 0) continue;
    ranks.fail("it was interrupted");
    throw py::error_already_set();
  }
  ranks.check();
  ranks.check_digests();
}

void bind_collective(py::module_& module) {
  const py::call_guard<Unlocked> unlocked;  // of Python's lock
  module.def("collective_bytes", &cpu::collective_bytes, py::arg("size"), py::arg("part_bytes"));
  py::class_<cpu::Collective, std::shared_ptr<cpu::Collective>>(module, "Collective")
      .def(py::init<const std::string&, int, int, int64_t>(), py::arg("path"), py::kw_only(),
           py::arg("rank"), py::arg("size"), py::arg("part_bytes"))
      .def_property_readonly("rank", &cpu::Collective::rank)
      .def_property_readonly("size", &cpu::Collective::size)
      .def("begin", &begin, py::arg("digest"))
      .def("fail", &cpu::Collective::fail, py::arg("why"))
      .def("max_of", &cpu::Collective::max_of, py::arg("value"), unlocked);
}

}  // namespace

void bind_session(py::module_& module) {
  bind_collective(module);
  bind_limits(module);
  bind_request(module);
  const py::call_guard<Unlocked> unlocked;  // of Python's lock
  bind_bound<PySession>(module, "Session")
      .def(py::init<const py::object&, py::dict, int, std::string, const std::string&,
                    std::shared_ptr<cpu::Collective>, bool>(),
           py::arg("spec"), py::arg("weights"), py::kw_only(), py::arg("threads"), py::arg("isa"),
           py::arg("cache") = "float32", py::arg("collective") = py::none(),
           py::arg("detect_overflow") = false)
      .def(py::init<const py::object&, py::dict, int, const std::string&,
                    std::shared_ptr<CudaCollective>, bool, bool>(),
           py::arg("spec"), py::arg("weights"), py::kw_only(), py::arg("device"),
           py::arg("cache") = "", py::arg("collective") = py::none(),
           py::arg("deterministic") = false, py::arg("detect_overflow") = false)
      .def("first_overflow", &PySession::first_overflow, py::arg("sentence"))
      .def_property_readonly("graph_nodes", &PySession::graph_nodes)
      .def("tuned", &PySession::tuned)
      .def("start", &PySession::start, py::arg("request"), py::arg("batch"))
      .def("step", &PySession::step, py::arg("steps"), unlocked)
      .def("compute", &PySession::compute, unlocked)
      .def("process_logits", &PySession::process_logits, py::arg("stages"), unlocked)
      .def("select", &PySession::select, unlocked)
      .def("update", &PySession::update, py::arg("ended") = py::none())
      .def("stop_now", &PySession::stop_now)
      .def("state", &PySession::state)
      .def("fetch", &PySession::fetch, py::arg("tokens"), py::arg("lengths"), py::arg("scores"),
           py::arg("sums"), py::arg("parent_rows"))
      .def("score", &PySession::score, py::arg("source"), py::arg("source_positions"),
           py::arg("source_offsets"), py::arg("sources"), py::arg("ids"), py::arg("labels"),
           py::arg("offsets"), py::arg("logprobs"), py::arg("ranks"), py::arg("argmax"),
           py::arg("stream") = 0)
      .def("attend", &PySession::attend, py::arg("source"), py::arg("source_positions"),
           py::arg("source_offsets"), py::arg("sources"), py::arg("ids"), py::arg("offsets"),
           py::arg("attentions"), py::arg("stream") = 0);
}

}  // namespace decoding
