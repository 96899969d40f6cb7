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

void* torch_stream(const py::handle& like, int device) {
  if (const dlpack::ExchangeApi* api = dlpack::exchange_api(like)) {
    void* stream = nullptr;
    if (api->current_stream(dlpack::kCuda, device, &stream) != 0) throw py::error_already_set();
    return stream;
  }
  const py::object cuda = py::module_::import("torch").attr("cuda");
  const py::object stream = cuda.attr("current_stream")(device).attr("cuda_stream");
  return reinterpret_cast<void*>(stream.cast<uintptr_t>());
}

}  // namespace

DeviceTools::DeviceTools(int id, bool deterministic)
    : device(cuda::Device::of(id)),
      workspace(cuda::kMatmulWorkspace + cuda::kMostDequantized, id),
      matmul(device, workspace.data(), workspace.bytes(), deterministic) {}

DeviceTools& renewed_tools(int id, bool deterministic) {
  const cuda::UseDevice use(id);
  place_of(id) = std::make_unique<DeviceTools>(id, deterministic);
  return *place_of(id);
}

DeviceTools& tools_of(int id) {
  return place_of(id) == nullptr ? renewed_tools(id) : *place_of(id);
}

cuda::Stream current_stream(const py::handle& like) {
  const int device = TensorView(like, "tensor").gpu();
  DeviceTools& tools = tools_of(device);
  CUDA_CHECK(cudaSetDevice(device));
  return {static_cast<cudaStream_t>(torch_stream(like, device)), tools.device, tools.matmul};
}

}  // namespace decoding
