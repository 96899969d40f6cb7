// A torch tensor or an array seen through its pointer, shape and type: no header and no library of
// torch or NumPy.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/dlpack.h"
#include "core/check.h"
#include "core/types.h"

namespace decoding {

namespace py = pybind11;

template <typename T>
constexpr const char* number_type = nullptr;
template <>
inline constexpr const char* number_type<float> = "float32";
template <>
inline constexpr const char* number_type<double> = "float64";
template <>
inline constexpr const char* number_type<int32_t> = "int32";
template <>
inline constexpr const char* number_type<int64_t> = "int64";
template <>
inline constexpr const char* number_type<int8_t> = "int8";
template <>
inline constexpr const char* number_type<uint8_t> = "uint8";
template <>
inline constexpr const char* number_type<BFloat16> = "bfloat16";
template <>
inline constexpr const char* number_type<Float16> = "float16";

// Of an array, whose format is a letter of Python's struct module. NumPy has no bfloat16: it is a
// record of that name there (models/weights/dtypes.py).
inline std::string type_of(const Py_buffer& array) {
  const std::string_view format = array.format == nullptr ? "B" : array.format;
  if (format == "T{H:bfloat16:}") return number_type<BFloat16>;
  const char letter = format.size() == 1 ? format[0] : '\0';
  const std::string bits = std::to_string(8 * array.itemsize);
  if (letter != '\0' && std::strchr("efd", letter)) return "float" + bits;
  if (letter != '\0' && std::strchr("bhilq", letter)) return "int" + bits;
  if (letter != '\0' && std::strchr("BHILQ", letter)) return "uint" + bits;
  return std::string(format);
}

// Python's view of an array's memory, as long as this lives. (pybind11's own stays for good where
// there is no memory for the rest of it.)
class BufferView {
 public:
  explicit BufferView(const py::handle& array) {
    if (PyObject_GetBuffer(array.ptr(), &view_, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
      throw py::error_already_set();
    }
  }
  ~BufferView() { PyBuffer_Release(&view_); }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;

  const Py_buffer& operator*() const { return view_; }
  const Py_buffer* operator->() const { return &view_; }

 private:
  Py_buffer view_;
};

// Of "cuda:0".
inline int gpu_of(const std::string& device) { return std::stoi(device.substr(5)); }

class TensorView {
 public:
  // Of a torch tensor, or of what has Python's buffer protocol, such as NumPy's arrays, wherever it
  // is. `name` is for messages. The view does not keep the tensor alive.
  TensorView(const py::handle& tensor, const std::string& name) : name_(name) {
    if (const dlpack::ExchangeApi* api = dlpack::exchange_api(tensor)) {
      read(tensor, *api);
    } else if (PyObject_CheckBuffer(tensor.ptr())) {
      read_array(tensor);
    } else {
      read_attributes(tensor);
    }
  }

  // Checks that it is contiguous and on the device.
  static TensorView of(const py::handle& tensor, const std::string& name,
                       const std::string& device = "cpu") {
    TensorView view(tensor, name);
    CHECK(view.device_ == device, name, " must be on ", device, ", it is on ", view.device_);
    CHECK(view.contiguous_, name, " must be contiguous");
    return view;
  }

  const std::string& device() const { return device_; }  // "cuda:0"
  int gpu() const { return gpu_of(device_); }
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::string& type() const { return type_; }  // "float32"
  void* data() const { return data_; }               // whatever the type
  int64_t size(int axis) const { return shape_.at(axis); }
  int64_t numel() const {
    int64_t count = 1;
    for (int64_t size : shape_) count *= size;
    return count;
  }

  template <typename T>
  T* data() const {
    CHECK(type_ == number_type<T>, name_, " must be ", number_type<T>, ", got ", type_);
    return static_cast<T*>(data_);
  }

  // The data, where the shape is the one expected; -1 stands for any size.
  template <typename T>
  T* data(const std::vector<int64_t>& expected) const {
    bool same = shape_.size() == expected.size();
    for (size_t i = 0; same && i < expected.size(); ++i) {
      same = expected[i] < 0 || expected[i] == shape_[i];
    }
    CHECK(same, name_, " must have shape ", text(expected), ", got ", text(shape_));
    return data<T>();
  }

 private:
  void read(const py::handle& tensor, const dlpack::ExchangeApi& api) {
    dlpack::Tensor found;
    if (api.read(tensor.ptr(), &found) != 0) throw py::error_already_set();
    device_ = dlpack::device_name(found);
    type_ = dlpack::type_name(found);
    data_ = static_cast<uint8_t*>(found.data) + found.byte_offset;
    shape_.assign(found.shape, found.shape + found.dimensions);
    contiguous_ = dlpack::is_contiguous(found);
  }

  // Of a torch that is older than the exchange API.
  void read_attributes(const py::handle& tensor) {
    CHECK(py::hasattr(tensor, "data_ptr"), name_, " must be a torch tensor or an array, got ",
          py::str(py::type::of(tensor)).cast<std::string>());
    const std::string type = py::str(tensor.attr("dtype"));
    device_ = py::str(tensor.attr("device"));
    type_ = type.substr(type.find('.') + 1);  // "torch.float32"
    data_ = reinterpret_cast<void*>(tensor.attr("data_ptr")().cast<uintptr_t>());
    for (py::handle size : tensor.attr("shape")) shape_.push_back(size.cast<int64_t>());
    contiguous_ = tensor.attr("is_contiguous")().cast<bool>();
  }

  void read_array(const py::handle& array) {
    const BufferView buffer(array);
    device_ = "cpu";
    type_ = type_of(*buffer);
    data_ = buffer->buf;
    shape_.assign(buffer->shape, buffer->shape + buffer->ndim);
    contiguous_ = PyBuffer_IsContiguous(&*buffer, 'C') != 0;
  }

  static std::string text(const std::vector<int64_t>& shape) {
    std::string out = "[";
    for (int64_t size : shape) {
      out += (out.size() > 1 ? ", " : "") + (size < 0 ? std::string("any") : std::to_string(size));
    }
    return out + "]";
  }

  void* data_ = nullptr;
  std::string name_, type_, device_;
  std::vector<int64_t> shape_;
  bool contiguous_ = false;
};

// A tensor as rows: each is as long as its last dimension, and all others count them.
struct Rows {
  TensorView tensor;
  int64_t rows = 1, cols = 0;
};

// The tensors of one call, all on one device.
class Tensors {
 public:
  explicit Tensors(std::string device) : device_(std::move(device)) {}

  TensorView view(const py::object& tensor, const std::string& name) const {
    return TensorView::of(tensor, name, device_);
  }
  template <typename T>
  T* data(const py::object& tensor, const std::string& name,
          const std::vector<int64_t>& shape) const {
    return view(tensor, name).data<T>(shape);
  }
  // Null where Python gives None.
  template <typename T>
  T* data_or_null(const py::object& tensor, const std::string& name,
                  const std::vector<int64_t>& shape) const {
    return tensor.is_none() ? nullptr : data<T>(tensor, name, shape);
  }
  // Of so many numbers, whatever the shape.
  template <typename T>
  T* numbers(const py::object& tensor, const std::string& name, int64_t count) const {
    const TensorView found = view(tensor, name);
    CHECK(found.numel() == count, name, " must have ", count, " numbers, has ", found.numel());
    return found.data<T>();
  }
  Rows rows(const py::object& tensor, const std::string& name) const {
    Rows found{view(tensor, name)};
    const auto& shape = found.tensor.shape();
    CHECK(!shape.empty(), name, " must have a dimension");
    found.cols = shape.back();
    for (size_t i = 0; i + 1 < shape.size(); ++i) found.rows *= shape[i];
    return found;
  }
  // The sizes of a tensor of `axes` dimensions.
  std::vector<int64_t> sizes(const py::object& tensor, const std::string& name, size_t axes) const {
    const auto shape = view(tensor, name).shape();
    CHECK(shape.size() == axes, name, " must have ", axes, " dimensions, has ", shape.size());
    return shape;
  }
  const std::string& device() const { return device_; }
  bool on_cuda() const { return device_ != "cpu"; }

 private:
  std::string device_;
};

// An uninitialised tensor on the device of `like`; dtype: "float32".
inline py::object empty_like(const py::object& like, const char* dtype,
                             const std::vector<int64_t>& shape) {
  return like.attr("new_empty")(shape, py::arg("dtype") = py::module_::import("torch").attr(dtype));
}

// None for int32, which no matrix is.
inline std::optional<WeightKind> kind_of(const TensorView& weight, const std::string& name) {
  if (weight.type() == "float32") return WeightKind::float32;
  if (weight.type() == "float16") return WeightKind::float16;
  if (weight.type() == "bfloat16") return WeightKind::bfloat16;
  if (weight.type() == "int8") return WeightKind::int8;
  if (weight.type() == "float8_e4m3fn") return WeightKind::float8;
  CHECK(weight.type() == "int32", name,
        " must be float32, float16, bfloat16, int8 or float8_e4m3fn, got ", weight.type());
  return std::nullopt;
}

}  // namespace decoding
