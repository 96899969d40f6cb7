// DLPack without a header or a library of torch: the structs are those of the ABI (dlpack.h 1.3).
//
// What a torch tensor is, is asked of torch in C, through the exchange API that torch has from 2.10
// on: it takes a hundredth of the time of the tensor's attributes. Memory of ours becomes a tensor
// by a capsule.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>

#include "core/check.h"

namespace decoding::dlpack {

namespace py = pybind11;

constexpr uint32_t kMajor = 1;  // of the ABI
constexpr int32_t kCpu = 1, kCuda = 2;

struct Tensor {
  void* data;
  int32_t device_type, device_id;
  int32_t dimensions;
  uint8_t type_code, type_bits;
  uint16_t type_lanes;
  int64_t *shape, *strides;  // its own
  uint64_t byte_offset;
};

// Memory that another library is given. It calls `release` once it has done with it.
struct ManagedTensor {
  Tensor tensor;
  void* owner;
  void (*release)(ManagedTensor*);
};

struct ExchangeApi {
  uint32_t major, minor;
  void *previous, *allocate, *from_object, *to_object;
  // Both return 0, or -1 with Python's exception set.
  int (*read)(void* object, Tensor* to);  // null: there is none
  int (*current_stream)(int32_t device_type, int32_t device_id, void** to);
};

// That of the object's library; null where it has none that we know.
inline const ExchangeApi* exchange_api(const py::handle& object) {
  static PyObject* const name = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
  const auto capsule = py::reinterpret_steal<py::object>(PyObject_GetAttr(type, name));
  const void* found = nullptr;
  if (capsule) found = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
  PyErr_Clear();  // there is no such attribute, or it is something else
  const auto* api = static_cast<const ExchangeApi*>(found);
  return api != nullptr && api->major == kMajor && api->read != nullptr ? api : nullptr;
}

constexpr const char* kKinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex"};

// "float32"
inline std::string type_name(const Tensor& tensor) {
  constexpr uint8_t kBool = 6;
  if (tensor.type_code == kBool) return "bool";
  const char* name = tensor.type_code < std::size(kKinds) ? kKinds[tensor.type_code] : "other";
  return name + std::to_string(tensor.type_bits);
}

// The code of "float" in "float32".
inline uint8_t type_code(const std::string& name) {
  const std::string kind = name.substr(0, name.find_first_of("0123456789"));
  const auto* const found = std::find(std::begin(kKinds), std::end(kKinds), kind);
  CHECK(found != std::end(kKinds), "DLPack has no ", name);
  return static_cast<uint8_t>(found - std::begin(kKinds));
}

// What torch.from_dlpack() makes a tensor of. Whoever takes it renames it, and releases the tensor.
inline py::capsule capsule_of(ManagedTensor* tensor) {
  return py::capsule(tensor, "dltensor", [](PyObject* capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return;  // it has been taken
    auto* const left = static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
    left->release(left);
  });
}

// "cuda:0"
inline std::string device_name(const Tensor& tensor) {
  if (tensor.device_type == kCpu) return "cpu";
  return (tensor.device_type == kCuda ? "cuda:" : "other:") + std::to_string(tensor.device_id);
}

// Whether its numbers lie one after the other, in the order of the dimensions.
inline bool is_contiguous(const Tensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t next = 1;
  bool contiguous = true;
  for (int i = tensor.dimensions - 1; i >= 0; --i) {
    if (tensor.shape[i] == 0) return true;
    contiguous &= tensor.shape[i] == 1 || tensor.strides[i] == next;
    next *= tensor.shape[i];
  }
  return contiguous;
}

}  // namespace decoding::dlpack
