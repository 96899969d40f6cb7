// Calls of single kernels on a GPU, on torch's current stream.
#pragma once

#include <string>

#include "bindings/tensor.h"
#include "kernels/cuda/resources.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/types.h"
#include "kernels/linear/cuda/cublaslt/matmul.h"

namespace decoding {

template <>
inline constexpr const char* number_type<cuda::half> = "float16";
template <>
inline constexpr const char* number_type<cuda::bfloat16> = "bfloat16";
template <>
inline constexpr const char* number_type<Float8> = "uint8";  // not all of torch exchanges e4m3

// What single kernels need of a device beside a stream.
struct DeviceTools {
  explicit DeviceTools(int id, bool deterministic = false);

  cuda::Device device;
  cuda::DeviceMemory workspace;
  cuda::Matmul matmul;
};

// Those of a device: made on first use, and kept.
DeviceTools& tools_of(int id);

// New ones know nothing of biases, whose addresses tensors may share one after the other.
DeviceTools& renewed_tools(int id, bool deterministic = false);

// Torch's current stream where `like` lies, with products that are tuned on first use.
cuda::Stream current_stream(const py::handle& like);

// Calls op<T>(stream) for the device and the type of `like`.
template <typename Op>
void on_cuda(const py::object& like, Op&& op) {
  const TensorView first(like, "tensor");
  const cuda::UseDevice use(first.gpu());
  cuda::Stream stream = current_stream(like);
  const std::string& type = first.type();
  if (type == number_type<float>) return op.template operator()<float>(stream);
  if (type == number_type<cuda::half>) return op.template operator()<cuda::half>(stream);
  CHECK(type == number_type<cuda::bfloat16>, "float32, float16 or bfloat16 is expected, got ",
        type);
  op.template operator()<cuda::bfloat16>(stream);
}

}  // namespace decoding
