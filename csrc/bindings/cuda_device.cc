#include "bindings/cuda_device.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/dlpack.h"
#include "bindings/tensor.h"
#include "bindings/unlocked.h"
#include "kernels/cuda/resources.h"
#include "kernels/cuda/stream.h"
#include "kernels/linear/cuda/cublaslt/cublaslt.h"
#include "kernels/linear/cuda/cublaslt/preload.h"

namespace decoding {
namespace {

using Sizes = std::vector<int64_t>;

int64_t item_bytes(const std::string& type) {
  return std::stoi(type.substr(type.find_first_of("0123456789"))) / 8;
}

// Strides of numbers without gaps.
Sizes packed(const Sizes& shape) {
  Sizes strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

// Frees memory without Python's lock: that waits for who uses it, which may wait for the lock.
struct FreeUnlocked {
  void operator()(const cuda::DeviceMemory* memory) const {
    std::optional<Unlocked> release;
    if (PyGILState_Check()) release.emplace();
    delete memory;
  }
};

// Numbers in a GPU's memory, with the names that torch has for the same things. Views share the
// memory, which goes with the last of them.
class DeviceArray {
 public:
  // uint8 [bytes], uninitialised.
  DeviceArray(int64_t bytes, int device)
      : memory_(new cuda::DeviceMemory(bytes, device), FreeUnlocked{}),
        device_(device),
        shape_({bytes}),
        strides_({1}) {}

  // What lies from byte `offset` of this on. stream: whose work writes it.
  DeviceArray view(const std::string& type, const Sizes& shape, const std::optional<Sizes>& strides,
                   int64_t offset, uintptr_t stream) const {
    DeviceArray view = *this;
    view.type_ = type;
    view.shape_ = shape;
    view.strides_ = strides.value_or(packed(shape));
    view.offset_ += offset;
    view.stream_ = reinterpret_cast<cudaStream_t>(stream);
    CHECK(view.strides_.size() == shape.size() && offset >= 0 &&
              view.offset_ + view.span() <= static_cast<int64_t>(memory_->bytes()),
          "the view reaches beyond its memory");
    return view;
  }

  // Of the first dimension.
  DeviceArray rows(int64_t first, int64_t count) const {
    DeviceArray part = *this;
    part.shape_.at(0) = count;
    part.offset_ += first * strides_.at(0) * item_bytes(type_);
    return part;
  }

  DeviceArray row(int64_t index) const {
    if (index < 0 || index >= shape_.at(0)) throw py::index_error();
    DeviceArray part = rows(index, 1);
    part.shape_.erase(part.shape_.begin());
    part.strides_.erase(part.strides_.begin());
    return part;
  }

  // Bytes from the first number to the end of the last.
  int64_t span() const {
    int64_t last = 0;
    for (size_t i = 0; i < shape_.size(); ++i) {
      if (shape_[i] == 0) return 0;
      last += (shape_[i] - 1) * strides_[i];
    }
    return (last + 1) * item_bytes(type_);
  }

  // The host's array, of as many bytes, is written here.
  void copy_from(const py::object& array) {
    const auto from = TensorView::of(array, "array");
    CHECK(is_contiguous() && from.numel() * item_bytes(from.type()) == span(),
          "the array must have as many bytes");
    copy(data(), from.data(), cudaMemcpyHostToDevice);
  }

  // The bytes of `span` are written to the host's array of as many.
  void copy_to(const py::object& array) const {
    const auto to = TensorView::of(array, "array");
    copy(to.data<uint8_t>({span()}), data(), cudaMemcpyDeviceToHost);
  }

  // The same numbers as another library's tensor, which keeps the memory. (CUDA's array interface
  // would do, but torch loses references to what describes it: pytorch's issue 194877.)
  py::capsule dlpack() const {
    struct Shared {
      dlpack::ManagedTensor tensor;
      DeviceArray array;
    };
    auto shared = std::make_unique<Shared>(Shared{{}, *this});
    shared->tensor = {
        .tensor = {.data = data(),
                   .device_type = dlpack::kCuda,
                   .device_id = device_,
                   .dimensions = static_cast<int32_t>(shape_.size()),
                   .type_code = dlpack::type_code(type_),
                   .type_bits = static_cast<uint8_t>(8 * item_bytes(type_)),
                   .type_lanes = 1,
                   .shape = shared->array.shape_.data(),
                   .strides = shared->array.strides_.data(),
                   .byte_offset = 0},
        .owner = shared.get(),
        .release = [](dlpack::ManagedTensor* t) { delete static_cast<Shared*>(t->owner); }};
    const py::capsule capsule = dlpack::capsule_of(&shared->tensor);
    shared.release();
    return capsule;
  }

  std::byte* data() const { return memory_->data() + offset_; }
  bool is_contiguous() const { return strides_ == packed(shape_); }
  std::string device() const { return "cuda:" + std::to_string(device_); }
  const std::string& type() const { return type_; }
  const Sizes& shape() const { return shape_; }
  const Sizes& strides() const { return strides_; }

 private:
  // Waits until it is done.
  void copy(void* to, const void* from, cudaMemcpyKind kind) const {
    const Unlocked release;
    const cuda::UseDevice use(device_);
    CUDA_CHECK(cudaMemcpyAsync(to, from, span(), kind, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  std::shared_ptr<cuda::DeviceMemory> memory_;
  int device_;
  std::string type_ = "uint8";
  Sizes shape_, strides_;  // in numbers
  int64_t offset_ = 0;     // in bytes
  cudaStream_t stream_ = nullptr;
};

DeviceArray part(const DeviceArray& array, const py::slice& slice) {
  py::ssize_t first = 0, end = 0, step = 0, count = 0;
  if (!slice.compute(array.shape().at(0), &first, &end, &step, &count))
    throw py::error_already_set();
  CHECK(step == 1, "a slice must have the step 1, got ", step);
  return array.rows(first, count);
}

void bind_device_array(py::module_& module) {
  py::class_<DeviceArray>(module, "DeviceArray")
      .def(py::init<int64_t, int>(), py::arg("bytes"), py::arg("device"),
           py::call_guard<Unlocked>())
      .def_property_readonly("shape",
                             [](const DeviceArray& a) { return py::tuple(py::cast(a.shape())); })
      .def_property_readonly("dtype", &DeviceArray::type)
      .def_property_readonly("device", &DeviceArray::device)
      .def_property_readonly("nbytes", &DeviceArray::span)
      .def("stride", [](const DeviceArray& a) { return py::tuple(py::cast(a.strides())); })
      .def("is_contiguous", &DeviceArray::is_contiguous)
      .def("data_ptr", [](const DeviceArray& a) { return reinterpret_cast<uintptr_t>(a.data()); })
      .def("view", &DeviceArray::view, py::arg("dtype"), py::arg("shape"), py::kw_only(),
           py::arg("strides") = py::none(), py::arg("offset") = 0, py::arg("stream") = 0)
      .def("__len__", [](const DeviceArray& a) { return a.shape().at(0); })
      .def("__getitem__", &DeviceArray::row)
      .def("__getitem__", &part)
      .def("copy_from", &DeviceArray::copy_from, py::arg("array"))
      .def("copy_to", &DeviceArray::copy_to, py::arg("array"))
      .def("dlpack", &DeviceArray::dlpack);
}

std::vector<std::pair<std::string, int>> gpus() {
  std::vector<std::pair<std::string, int>> found(cuda::device_count());
  for (size_t i = 0; i < found.size(); ++i) {
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, static_cast<int>(i)));
    found[i] = {properties.name, 10 * properties.major + properties.minor};
  }
  return found;
}

size_t free_memory(int device) {
  const cuda::UseDevice use(device);
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return free;
}

}  // namespace

void bind_cuda_device(py::module_& module) {
  bind_device_array(module);
  // Both open the driver, which takes long, and other threads go on meanwhile.
  module.def("gpus", &gpus, py::call_guard<Unlocked>());
  module.def("free_memory", &free_memory, py::arg("device"), py::call_guard<Unlocked>());
  module.def("load_tuned_kernels", &cuda::load_tuned_kernels, py::arg("device"),
             py::call_guard<Unlocked>());
  module.def("look_for_cublaslt", &cuda::cublaslt::look_in, py::arg("folders"));
}

}  // namespace decoding
