#include "bindings/cuda.h"

#include <map>
#include <memory>

namespace decoding {
namespace {

// Outlives Python.
std::unique_ptr<DeviceTools>& place_of(int id) {
  static auto& all = *new std::map<int, std::unique_ptr<DeviceTools>>;
  return all[id];
}

}  // namespace

DeviceTools::DeviceTools(int id, bool deterministic)
    : device(cuda::Device::of(id)),
      workspace(cuda::kMatmulWorkspace, id),
      matmul(device, workspace.data(), workspace.bytes(), deterministic) {}

DeviceTools& renewed_tools(int id, bool deterministic) {
  const cuda::UseDevice use(id);
  place_of(id) = std::make_unique<DeviceTools>(id, deterministic);
  return *place_of(id);
}

DeviceTools& tools_of(int id) {
  return place_of(id) == nullptr ? renewed_tools(id) : *place_of(id);
}

cuda::Stream current_stream(int device) {
  DeviceTools& tools = tools_of(device);
  CUDA_CHECK(cudaSetDevice(device));
  const py::object torch = py::module_::import("torch").attr("cuda");
  const py::object stream = torch.attr("current_stream")(device);
  const auto handle = stream.attr("cuda_stream").cast<uintptr_t>();
  return {reinterpret_cast<cudaStream_t>(handle), tools.device, tools.matmul};
}

}  // namespace decoding
