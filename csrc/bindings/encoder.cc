#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bound.h"
#include "bindings/model.h"
#include "bindings/session.h"
#include "bindings/tensor.h"
#include "bindings/unlocked.h"
#include "engine/encoder_session.h"

namespace decoding {
namespace {

class PyEncoderSession : public Bound<EncoderSession> {
 public:
  // spec: models/spec.py's EncoderSpec.
  PyEncoderSession(const py::object& spec, py::dict weights, int threads, std::string isa,
                   bool detect_overflow)
      : Bound(std::move(weights), threads, std::move(isa)) {
    const StackSpec encoder = checked(spec);
    kind_ = WeightKind::float32;
    session_ = make_cpu_encoder_session(encoder, load(encoder, std::nullopt), threads, this->isa,
                                        detect_overflow);
  }

  PyEncoderSession([[maybe_unused]] const py::object& spec, py::dict weights, int device,
                   [[maybe_unused]] bool deterministic, [[maybe_unused]] bool detect_overflow)
      : Bound(std::move(weights), device) {
#ifdef DECODING_CUDA
    const StackSpec encoder = checked(spec);
    kind_ = kind_on_gpu(weights_, device_, "encoder.embed.tokens");
    session_ = make_cuda_encoder_session(encoder, load(encoder, kind_), kind_, device,
                                         deterministic, detect_overflow);
#else
    throw Error("this engine was built without CUDA");
#endif
  }

  void encode(const py::object& source, const py::object& source_positions,
              const py::object& source_offsets, const py::object& states, uintptr_t stream) {
    const auto ids = TensorView::of(source, "source");
    const auto offsets = TensorView::of(source_offsets, "source_offsets");
    const auto to = TensorView::of(states, "states", device_);
    Batch batch{};
    batch.source = ids.data<int32_t>({-1});
    batch.source_positions =
        TensorView::of(source_positions, "source_positions").data<int32_t>({ids.numel()});
    batch.source_offsets = offsets.data<int32_t>({-1});
    batch.sentences = static_cast<int>(offsets.numel()) - 1;
    batch.stream = reinterpret_cast<void*>(stream);
    CHECK(batch.sentences > 0 && batch.source_offsets[batch.sentences] == ids.numel(),
          "source_offsets must end with the ", ids.numel(), " tokens");
    CHECK(kind_of(to, "states") == kind_ &&
              to.shape() == std::vector<int64_t>({ids.numel(), hidden_}),
          "states must be [", ids.numel(), ", ", hidden_, "], of the session's type");
    const Unlocked release;
    session_->encode(batch, to.data());
  }

 private:
  StackSpec checked(const py::object& spec) {
    const StackSpec encoder = encoder_spec(spec.attr("encoder"));
    CHECK(!encoder.pre_norm || encoder.final_norm, "an encoder alone needs a norm at its end");
    hidden_ = encoder.hidden;
    return encoder;
  }

  StackWeights load(const StackSpec& spec, std::optional<WeightKind> only) const {
    return load_stack(weight_table(weights_, device_, only), "encoder", spec, nullptr);
  }

  WeightKind kind_;  // of the session's numbers
  int64_t hidden_ = 0;
};

}  // namespace

void bind_encoder_session(py::module_& module) {
  bind_bound<PyEncoderSession>(module, "EncoderSession")
      .def(py::init<const py::object&, py::dict, int, std::string, bool>(), py::arg("spec"),
           py::arg("weights"), py::kw_only(), py::arg("threads"), py::arg("isa"),
           py::arg("detect_overflow") = false)
      .def(py::init<const py::object&, py::dict, int, bool, bool>(), py::arg("spec"),
           py::arg("weights"), py::kw_only(), py::arg("device"), py::arg("deterministic") = false,
           py::arg("detect_overflow") = false)
      .def("encode", &PyEncoderSession::encode, py::arg("source"), py::arg("source_positions"),
           py::arg("source_offsets"), py::arg("states"), py::arg("stream") = 0);
}

}  // namespace decoding
