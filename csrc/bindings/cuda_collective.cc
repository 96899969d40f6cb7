// The GPUs of a model that is split over processes: decoding._C.CudaCollective.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bindings/cuda_device.h"
#include "bindings/unlocked.h"
#include "kernels/cpu/collective.h"
#include "kernels/cuda/collective.h"
#include "kernels/cuda/launch_order.h"

namespace py = pybind11;

namespace decoding {
namespace {

// `with CudaLaunchLock():` around a call of a model, which ends all that it launches.
class PyLaunchLock {
 public:
  void enter() { lock_ = cuda::LaunchOrder::of_process().lock(nullptr); }
  void exit(const py::args&) { lock_.unlock(); }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace

void bind_cuda_collective(py::module_& module) {
  const py::call_guard<Unlocked> unlocked;  // of Python's lock
  py::class_<cuda::Collective, std::shared_ptr<cuda::Collective>>(module, "CudaCollective")
      .def(py::init([](std::shared_ptr<cpu::Collective> ranks, int device, int64_t part_bytes) {
             return std::make_shared<cuda::Collective>(std::move(ranks), device, part_bytes);
           }),
           py::arg("ranks"), py::kw_only(), py::arg("device"), py::arg("part_bytes"))
      .def("share", [](cuda::Collective& c) { return py::bytes(c.share()); })
      .def("open", &cuda::Collective::open, py::arg("handles"))
      .def_property_readonly("host_bytes", &cuda::Collective::host_bytes)
      .def("open_on_host", &cuda::Collective::open_on_host, py::arg("path"))
      .def("enter", &cuda::Collective::enter, unlocked)
      .def("leave", &cuda::Collective::leave);
  py::class_<PyLaunchLock>(module, "CudaLaunchLock")
      .def(py::init<>())
      .def("__enter__", &PyLaunchLock::enter, unlocked)
      .def("__exit__", &PyLaunchLock::exit);
}

}  // namespace decoding
