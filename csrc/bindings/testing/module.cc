// decoding._kernels: one function per area.
#include <pybind11/pybind11.h>

#include "bindings/testing/kernels.h"

namespace decoding {
// Written by setup.py.
extern const char* const kSourcesHash;
}  // namespace decoding

PYBIND11_MODULE(_kernels, kernels) {
  namespace py = pybind11;
  // The engine has the classes of options and Error, which kernels throw too.
  const py::module_ engine = py::module_::import("decoding._C");
  if (engine.attr("sources_hash").cast<std::string>() != decoding::kSourcesHash) {
    throw py::import_error(
        "decoding._kernels is of other sources than decoding._C: "
        "run `python setup.py build_ext --inplace` in the checkout");
  }
  decoding::bind_layers(kernels);
  decoding::bind_elementwise(kernels);
  decoding::bind_attention(kernels);
  decoding::bind_depthwise(kernels);
  decoding::bind_project(kernels);
  decoding::bind_search(kernels);
  decoding::bind_beams(kernels);
  decoding::bind_filters(kernels);
  decoding::bind_controls(kernels);
  decoding::bind_guidance(kernels);
  decoding::bind_scheduler(kernels);
  decoding::bind_scheduling(kernels);
  decoding::bind_overcommit(kernels);
  decoding::bind_joining(kernels);
#ifdef DECODING_CUDA
  decoding::bind_cuda(kernels);
  decoding::bind_exchanges(kernels);
#endif
}
