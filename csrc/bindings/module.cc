// decoding._C: one function per area.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>
#include <new>

#include "bindings/cuda_device.h"
#include "bindings/engine.h"
#include "bindings/model.h"
#include "bindings/session.h"
#include "bindings/training/training.h"
#include "core/check.h"
#include "kernels/cpu/isa.h"

namespace decoding {
// Written by setup.py.
extern const char* const kSourcesHash;
extern const char* const kCudaArchs;
}  // namespace decoding

PYBIND11_MODULE(_C, module) {
  namespace py = pybind11;
  py::register_exception<decoding::Error>(module, "Error", PyExc_RuntimeError);
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
      PyErr_SetString(PyExc_MemoryError, "there is no memory left");
    }
  });
  module.attr("sources_hash") = decoding::kSourcesHash;
  module.attr("cuda_archs") = decoding::kCudaArchs;
  module.def("isas", &decoding::cpu::isas);
#ifdef DECODING_CUDA
  decoding::bind_cuda_device(module);
#endif
  decoding::bind_panels(module);
  decoding::bind_session(module);
#ifdef DECODING_CUDA
  decoding::bind_cuda_collective(module);
#endif
  decoding::bind_encoder_session(module);
  decoding::bind_engine(module);
  py::module_ training = module.def_submodule("training");
  decoding::bind_training_loss(training);
  decoding::bind_training_norm(training);
  decoding::bind_training_embed(training);
}
