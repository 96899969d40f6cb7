// What a torch tensor is, asked of torch in C: DLPack's exchange API (dlpack.h 1.3), which torch
// has from 2.10 on. It takes a hundredth of the time of the tensor's attributes, and needs no
// header and no library of torch. The structs are those of the ABI.
#pragma once

#include <pybind11/pybind11.h>

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

// "float32"
inline std::string type_name(const Tensor& tensor) {
  constexpr const char* kNames[] = {"int", "uint", "float", "opaque", "bfloat", "complex"};
  constexpr uint8_t kBool = 6;
  if (tensor.type_code == kBool) return "bool";
  const char* name = tensor.type_code < std::size(kNames) ? kNames[tensor.type_code] : "other";
  return name + std::to_string(tensor.type_bits);
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
