#include "kernels/linear/cuda/cublaslt/matmul.h"

#include <algorithm>
#include <memory>
#include <span>
#include <type_traits>

#include "kernels/cuda/check.h"

namespace decoding::cuda {
namespace {

using namespace cublaslt;

constexpr uint32_t kOperandAlignment = 16;  // bytes; what tensor cores and bulk copies ask for

template <typename T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Status (*)(T)>;

template <typename Attribute, typename Value>
void set(Owned<Operation>& operation, Attribute attribute, Value value) {
  CUBLASLT_CHECK(library().operation_set(operation.get(), attribute, &value, sizeof(value)));
}

template <typename Value>
void set(Owned<Preference>& preference, PreferenceAttribute attribute, Value value) {
  CUBLASLT_CHECK(library().preference_set(preference.get(), attribute, &value, sizeof(value)));
}

Owned<Layout> layout(cudaDataType_t type, int rows, int cols, int stride) {
  Layout made = nullptr;
  CUBLASLT_CHECK(library().layout_create(&made, type, rows, cols, stride));
  return {made, library().layout_destroy};
}

Epilogue epilogue_of(const Product& p) {
  uint32_t bits = 0;
  if (p.activation == Activation::relu) bits |= static_cast<uint32_t>(Epilogue::relu);
  if (p.activation == Activation::gelu_tanh) bits |= static_cast<uint32_t>(Epilogue::gelu_tanh);
  if (p.bias != nullptr) bits |= static_cast<uint32_t>(Epilogue::bias);
  return bits == 0 ? Epilogue::nothing : static_cast<Epilogue>(bits);
}

Owned<Operation> operation(const Product& p) {
  Operation made = nullptr;
  CUBLASLT_CHECK(library().operation_create(&made, Compute::float32, CUDA_R_32F));
  Owned<Operation> operation(made, library().operation_destroy);
  set(operation, OperationAttribute::transpose_a, Transpose::yes);
  set(operation, OperationAttribute::epilogue, epilogue_of(p));
  if (p.bias != nullptr) set(operation, OperationAttribute::bias_pointer, p.bias);
  return operation;
}

// cuBLASLt counts columns first, so that it sees W as [inputs, outputs], x as [inputs, rows] and y
// as [outputs, rows]: y = W^T x, with the bias along a column.
struct Description {
  explicit Description(const Product& p)
      : operation(cuda::operation(p)),
        weight(layout(p.type, p.inputs, p.outputs, p.inputs)),
        x(layout(p.type, p.inputs, p.rows, p.inputs)),
        y(layout(p.type, p.outputs, p.rows, p.stride)) {}

  Owned<Operation> operation;
  Owned<Layout> weight, x, y;
};

}  // namespace

bool Stream::deterministic() const { return matmul_.deterministic(); }

Matmul::Matmul(const Device& device, void* workspace, size_t bytes, bool deterministic)
    : handle_(device.id),
      workspace_(workspace),
      bytes_(bytes),
      workspace_bytes_(std::min(bytes, kMatmulWorkspace)),
      deterministic_(deterministic),
      tuning_(device, library().get_version()) {}

Matmul::~Matmul() {
  for (const auto& [bias, narrow] : narrow_biases_) cudaFree(narrow);
}

std::vector<cublaslt::Algorithm> Matmul::algorithms(const Product& p, int most) const {
  const Description of(p);
  Preference made = nullptr;
  CUBLASLT_CHECK(library().preference_create(&made));
  Owned<Preference> preference(made, library().preference_destroy);
  set(preference, PreferenceAttribute::workspace_bytes, uint64_t{workspace_bytes_});
  if (p.type != CUDA_R_32F) {
    set(preference, PreferenceAttribute::reduction_schemes, kReduceInComputeType);
  }
  for (auto operand : {PreferenceAttribute::alignment_a, PreferenceAttribute::alignment_b,
                       PreferenceAttribute::alignment_c, PreferenceAttribute::alignment_d}) {
    set(preference, operand, kOperandAlignment);
  }
  std::vector<Heuristic> found(most);
  int count = 0;
  const Status status =
      library().heuristics(handle_.get(), of.operation.get(), of.weight.get(), of.x.get(),
                           of.y.get(), of.y.get(), preference.get(), most, found.data(), &count);
  if (status == Status::not_supported) return {};
  CUBLASLT_CHECK(status);
  std::vector<cublaslt::Algorithm> algorithms;
  for (const Heuristic& proposal : std::span(found).first(count)) {
    if (proposal.status == Status::success) algorithms.push_back(proposal.algorithm);
  }
  return algorithms;
}

void Matmul::multiply(cudaStream_t stream, const Product& p,
                      const cublaslt::Algorithm& algorithm) const {
  for (const void* operand : {p.x, p.weight, p.residual, static_cast<const void*>(p.y)}) {
    CHECK(reinterpret_cast<uintptr_t>(operand) % kOperandAlignment == 0,
          "matrices must be aligned to ", kOperandAlignment, " bytes");
  }
  const Description of(p);
  const float one = 1.0f, beta = p.residual == nullptr ? 0.0f : 1.0f;
  const auto run = [&](const cublaslt::Algorithm& chosen) {
    return library().matmul(handle_.get(), of.operation.get(), &one, p.weight, of.weight.get(), p.x,
                            of.x.get(), &beta, p.residual == nullptr ? p.y : p.residual, of.y.get(),
                            p.y, of.y.get(), &chosen, workspace_, workspace_bytes_, stream);
  };
  if (run(algorithm) == Status::success) return;
  const auto others = algorithms(p, 1);
  CHECK(!others.empty(), "cuBLASLt has no algorithm for [", p.rows, ", ", p.inputs, "] x [",
        p.outputs, ", ", p.inputs, "]^T");
  CUBLASLT_CHECK(run(others.front()));
}

void* Matmul::narrow_bias(const float* bias) const {
  const auto at = narrow_biases_.find(bias);
  return at == narrow_biases_.end() ? nullptr : at->second;
}

void* Matmul::new_narrow_bias(const float* bias, int outputs) {
  void* narrow = nullptr;
  CUDA_CHECK(cudaMalloc(&narrow, outputs * sizeof(uint16_t)));
  return narrow_biases_[bias] = narrow;
}

}  // namespace decoding::cuda
