// A torch tensor or an array seen through its pointer, shape and type: no header and no library of
// torch or NumPy.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

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
inline constexpr const char* number_type<uint8_t> = "uint8";
template <>
inline constexpr const char* number_type<BFloat16> = "bfloat16";
template <>
inline constexpr const char* number_type<Float16> = "float16";

// Of a torch tensor: "float32".
inline std::string type_of(const py::handle& tensor) {
  const std::string name = py::str(tensor.attr("dtype"));
  return name.substr(name.find('.') + 1);  // "torch.float32"
}

// Of an array, whose format is a letter of Python's struct module. NumPy has no bfloat16: it is a
// record of that name there (models/weights/dtypes.py).
inline std::string type_of(const py::buffer_info& array) {
  if (array.format == "T{H:bfloat16:}") return number_type<BFloat16>;
  const char letter = array.format.size() == 1 ? array.format[0] : '\0';
  const std::string bits = std::to_string(8 * array.itemsize);
  if (letter != '\0' && std::strchr("efd", letter)) return "float" + bits;
  if (letter != '\0' && std::strchr("bhilq", letter)) return "int" + bits;
  if (letter != '\0' && std::strchr("BHILQ", letter)) return "uint" + bits;
  return array.format;
}

class TensorView {
 public:
  // Of a torch tensor, or on the CPU of what has Python's buffer protocol, such as NumPy's arrays.
  // Checks that it is contiguous and on the device; `name` is for messages. The view does not keep
  // the tensor alive.
  static TensorView of(const py::handle& tensor, const std::string& name,
                       const std::string& device = "cpu") {
    TensorView view;
    view.name_ = name;
    const bool is_array = PyObject_CheckBuffer(tensor.ptr()) != 0;
    CHECK(is_array || py::hasattr(tensor, "data_ptr"), name,
          " must be a torch tensor or an array, got ",
          py::str(py::type::of(tensor)).cast<std::string>());
    const std::string place = is_array ? "cpu" : py::str(tensor.attr("device"));
    CHECK(place == device, name, " must be on ", device, ", it is on ", place);
    is_array ? view.read_array(tensor) : view.read_tensor(tensor);
    return view;
  }

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
  void read_tensor(const py::handle& tensor) {
    CHECK(tensor.attr("is_contiguous")().cast<bool>(), name_, " must be contiguous");
    type_ = type_of(tensor);
    data_ = reinterpret_cast<void*>(tensor.attr("data_ptr")().cast<uintptr_t>());
    for (py::handle size : tensor.attr("shape")) shape_.push_back(size.cast<int64_t>());
  }

  void read_array(const py::handle& array) {
    const py::buffer_info info = py::reinterpret_borrow<py::buffer>(array).request();
    CHECK(PyBuffer_IsContiguous(info.view(), 'C'), name_, " must be contiguous");
    type_ = type_of(info);
    data_ = info.ptr;
    shape_.assign(info.shape.begin(), info.shape.end());
  }

  static std::string text(const std::vector<int64_t>& shape) {
    std::string out = "[";
    for (int64_t size : shape) {
      out += (out.size() > 1 ? ", " : "") + (size < 0 ? std::string("any") : std::to_string(size));
    }
    return out + "]";
  }

  void* data_ = nullptr;
  std::string name_, type_;
  std::vector<int64_t> shape_;
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
  // The sizes of a tensor of `axes` dimensions.
  std::vector<int64_t> sizes(const py::object& tensor, const std::string& name, size_t axes) const {
    const auto shape = view(tensor, name).shape();
    CHECK(shape.size() == axes, name, " must have ", axes, " dimensions, has ", shape.size());
    return shape;
  }
  bool on_cuda() const { return device_ != "cpu"; }

 private:
  std::string device_;
};

// An uninitialised tensor on the device of `like`; dtype: "float32".
inline py::object empty_like(const py::object& like, const char* dtype,
                             const std::vector<int64_t>& shape) {
  const py::module_ torch = py::module_::import("torch");
  return torch.attr("empty")(shape, py::arg("dtype") = torch.attr(dtype),
                             py::arg("device") = like.attr("device"));
}

// None for int32, which no matrix is.
inline std::optional<WeightKind> kind_of(const TensorView& weight, const std::string& name) {
  if (weight.type() == "float32") return WeightKind::float32;
  if (weight.type() == "float16") return WeightKind::float16;
  if (weight.type() == "bfloat16") return WeightKind::bfloat16;
  if (weight.type() == "int8") return WeightKind::int8;
  CHECK(weight.type() == "int32", name, " must be float32, float16, bfloat16 or int8, got ",
        weight.type());
  return std::nullopt;
}

}  // namespace decoding
