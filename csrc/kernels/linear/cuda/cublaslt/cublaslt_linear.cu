#include <algorithm>
#include <bit>
#include <type_traits>
#include <utility>

#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/linear/cuda/cublaslt/cublaslt_linear.h"
#include "kernels/linear/cuda/gemm.h"
#include "kernels/linear/cuda/quantized/dequantize.h"

namespace decoding::cuda {
namespace {

template <typename T>
constexpr WeightKind kWeightKind =
    std::is_same_v<T, half> ? WeightKind::float16 : WeightKind::bfloat16;

template <typename T>
__global__ void narrow_kernel(const float* wide, T* narrow, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) narrow[i] = from_float<T>(wide[i]);
}

// y = activation(y + bias) + residual: what cuBLASLt left to do.
template <typename T>
struct RestParams {
  T* y;               // [rows, cols], its rows `stride` apart
  const float* bias;  // [cols], may be null
  const T* residual;  // [rows, cols] like y, may be null
  int rows, cols, stride;
  Activation activation;
};

constexpr int kRows = 2;  // of a thread: it asks for both before it waits for one

// A thread holds the bias of `width` columns, for kRows rows.
template <typename T, int width>
__global__ void rest_kernel(RestParams<T> p) {
  const int column = (blockIdx.y * blockDim.x + threadIdx.x) * width;
  const int first_row = blockIdx.x * blockDim.y * kRows + threadIdx.y;
  float bias[width] = {};
  if (p.bias != nullptr && column < p.cols) {
#pragma unroll
    for (int i = 0; i < width; ++i) bias[i] = p.bias[column + i];
  }
  wait_for_previous();
  let_next_start();
  if (column >= p.cols) return;
  Vector<T, width> y[kRows], residual[kRows] = {};
  const auto for_rows = [&](auto&& use) {
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int row = first_row + k * blockDim.y;
      if (row < p.rows) use(k, int64_t(row) * p.stride + column);
    }
  };
  for_rows([&](int k, int64_t at) {
    y[k] = Vector<T, width>::load(p.y + at);
    if (p.residual != nullptr) residual[k] = Vector<T, width>::load(p.residual + at);
  });
  for_rows([&](int k, int64_t at) {
    float x[width];
#pragma unroll
    for (int i = 0; i < width; ++i) x[i] = y[k][i] + bias[i];
    activate<T>(x, p.activation);
#pragma unroll
    for (int i = 0; i < width; ++i) y[k].values[i] = from_float<T>(x[i] + residual[k][i]);
    y[k].store(p.y + at);
  });
}

template <typename T>
void finish(Stream& stream, const RestParams<T>& p) {
  constexpr int kWidth = 16 / sizeof(T);
  const bool wide =
      p.cols % kWidth == 0 && aligned16<T>(p.y, p.stride) && aligned16<T>(p.residual, p.stride);
  const int vectors = wide ? p.cols / kWidth : p.cols;
  const unsigned x = std::min(128u, std::bit_ceil(static_cast<unsigned>(vectors))), y = 256 / x;
  const dim3 grid((p.rows + kRows * y - 1) / (kRows * y), (vectors + x - 1) / x);
  launch(stream, wide ? rest_kernel<T, kWidth> : rest_kernel<T, 1>, grid, dim3(x, y), 0, p);
}

// Whether cuBLASLt could do all of p, given the bias in the type of y. It adds the residual before
// the activation, and its tanh is not as exact as float32 wants it. Its relu makes NaN 0, which is
// accepted: where a NaN comes from, the residual still carries it on.
template <typename T>
bool has_epilogue(const LinearParams<T>& p) {
  if (p.activation == Activation::none) return true;
  if (p.residual != nullptr) return false;
  return p.activation == Activation::relu ||
         (p.activation == Activation::gelu_tanh && sizeof(T) < sizeof(float));
}

template <typename T>
const void* bias_in_type(const Matmul& matmul, const float* bias) {
  if constexpr (sizeof(T) == sizeof(float)) return bias;
  return bias == nullptr ? nullptr : matmul.narrow_bias(bias);
}

// As cuBLASLt sees p.
template <typename T>
Product product_of(const Matmul& matmul, const LinearParams<T>& p) {
  const bool whole = is_whole(matmul, p);
  return {.type = kType<T>,
          .rows = p.rows,
          .outputs = p.weight.outputs,
          .inputs = p.weight.inputs,
          .x = p.x,
          .weight = p.weight.data,
          .bias = whole ? bias_in_type<T>(matmul, p.bias) : nullptr,
          .residual = p.activation == Activation::none ? p.residual : nullptr,
          .y = p.y,
          .stride = stride_of(p),
          .activation = whole ? p.activation : Activation::none};
}

template <typename T>
void multiply(Stream& stream, const LinearParams<T>& p, const cublaslt::Algorithm& algorithm) {
  const Product product = product_of(stream.matmul(), p);
  stream.matmul().multiply(stream.handle(), product, algorithm);
  const bool bias_left = p.bias != nullptr && product.bias == nullptr;
  const bool residual_left = p.residual != nullptr && product.residual == nullptr;
  if (!bias_left && !residual_left && product.activation == p.activation) return;
  CHECK(!residual_left || p.residual != p.y, "the residual behind an activation must not be y");
  finish<T>(stream, {.y = p.y,
                     .bias = bias_left ? p.bias : nullptr,
                     .residual = residual_left ? p.residual : nullptr,
                     .rows = p.rows,
                     .cols = p.weight.outputs,
                     .stride = stride_of(p),
                     .activation = p.activation});
}

// Some of the outputs of p, whose weight lies as published.
template <typename T>
LinearParams<T> outputs_of(const LinearParams<T>& p, int first, int count) {
  LinearParams<T> part = p;
  part.weight.data = static_cast<const T*>(p.weight.data) + int64_t(first) * p.weight.inputs;
  part.weight.outputs = count;
  if (p.bias != nullptr) part.bias = p.bias + first;
  if (p.residual != nullptr) part.residual = p.residual + first;
  part.y = p.y + first;
  part.stride = stride_of(p);
  return part;
}

// How many outputs of p cuBLASLt computes. Without a multiple of 8 it leaves the fast kernels;
// where rows of y lie apart for their sake (an odd vocabulary), the last few outputs are ours.
template <typename T>
int outputs_in_cublaslt(const Device& device, const LinearParams<T>& p) {
  const int outputs = p.weight.outputs, even = outputs / 8 * 8;
  const bool splits = even > 0 && even < outputs && stride_of(p) % 8 == 0;
  return splits && fused_linear_variants(device, outputs_of(p, even, outputs - even)) > 0 ? even
                                                                                          : outputs;
}

// As many outputs of a quantized weight as there is room for in 16 bits, in nearly equal parts.
int dequantized_at_once(const Matmul& matmul, const LinearWeight& weight) {
  constexpr int64_t kUnit = 64;
  const int64_t room = matmul.dequantized_bytes() / (sizeof(half) * weight.inputs);
  CHECK(room >= std::min<int64_t>(kUnit, weight.outputs), "a quantized weight of ", weight.inputs,
        " inputs has no room in 16 bits");
  const int64_t most = std::max(room / kUnit * kUnit, kUnit);
  const int64_t parts = (weight.outputs + most - 1) / most;
  const int64_t equal = (weight.outputs + parts - 1) / parts;
  return static_cast<int>((equal + kUnit - 1) / kUnit * kUnit);
}

// use(part, weight) for all parts of p in turn, each of which finds its weight in 16 bits; weight:
// what it is made of, null where p has it in 16 bits already.
template <typename T, typename Use>
void for_parts(const Matmul& matmul, const LinearParams<T>& p, const Use& use) {
  if (!is_quantized(p.weight.kind)) return use(p, nullptr);
  const int outputs = p.weight.outputs, most = dequantized_at_once(matmul, p.weight);
  for (int first = 0; first < outputs; first += most) {
    LinearWeight weight = p.weight;
    weight.data =
        static_cast<const uint8_t*>(weight.data) + int64_t{first} * quantized_stride(weight.inputs);
    weight.scale += first;
    weight.outputs = std::min(most, outputs - first);
    LinearParams<T> part = outputs_of(p, first, weight.outputs);
    part.weight.data = matmul.dequantized();
    part.weight.scale = nullptr;
    part.weight.kind = kWeightKind<T>;
    use(part, &weight);
  }
}

// The first of them, which stands for all.
template <typename T>
LinearParams<T> first_part(const Matmul& matmul, const LinearParams<T>& p) {
  LinearParams<T> first = p;
  bool found = false;
  for_parts(matmul, p, [&](const LinearParams<T>& part, const LinearWeight*) {
    if (!std::exchange(found, true)) first = part;
  });
  return first;
}

template <typename T>
void prepare_part(Stream& stream, const LinearParams<T>& p) {
  const bool narrow = sizeof(T) < sizeof(float) && p.bias != nullptr && has_epilogue(p);
  if (!narrow || stream.matmul().narrow_bias(p.bias) != nullptr) return;
  const int outputs = p.weight.outputs;
  T* const copy = static_cast<T*>(stream.matmul().new_narrow_bias(p.bias, outputs));
  narrow_kernel<<<(outputs + 255) / 256, 256, 0, stream.handle()>>>(p.bias, copy, outputs);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaStreamSynchronize(stream.handle()));  // other streams will read it
}

template <typename T>
void multiply_part(Stream& stream, const LinearParams<T>& p, const cublaslt::Algorithm& algorithm) {
  const int outputs = p.weight.outputs, most = outputs_in_cublaslt(stream.device(), p);
  multiply(stream, outputs_of(p, 0, most), algorithm);
  if (most < outputs) fused_linear(stream, outputs_of(p, most, outputs - most), 0);
}

}  // namespace

template <typename T>
void prepare_bias(Stream& stream, const LinearParams<T>& p) {
  for_parts(stream.matmul(), p,
            [&](const LinearParams<T>& part, const LinearWeight*) { prepare_part(stream, part); });
}

template <typename T>
bool is_whole(const Matmul& matmul, const LinearParams<T>& p) {
  return has_epilogue(p) && (p.bias == nullptr || bias_in_type<T>(matmul, p.bias) != nullptr);
}

template <typename T>
std::vector<cublaslt::Algorithm> cublaslt_proposals(Stream& stream, const LinearParams<T>& p,
                                                    int most) {
  const LinearParams<T> first = first_part(stream.matmul(), p);
  const auto part = outputs_of(first, 0, outputs_in_cublaslt(stream.device(), first));
  return stream.matmul().algorithms(product_of(stream.matmul(), part), most);
}

template <typename T>
void cublaslt_linear(Stream& stream, const LinearParams<T>& p,
                     const cublaslt::Algorithm& algorithm) {
  Stream in_turn = stream.in_turn();  // our own kernels load a weight before they wait for others
  for_parts(stream.matmul(), p, [&](const LinearParams<T>& part, const LinearWeight* weight) {
    if constexpr (sizeof(T) < sizeof(float)) {
      if (weight != nullptr) {
        dequantize(stream, *weight, static_cast<T*>(stream.matmul().dequantized()));
        return multiply_part(in_turn, part, algorithm);
      }
    }
    multiply_part(stream, part, algorithm);
  });
}

#define INSTANTIATE(T)                                                                          \
  template void prepare_bias(Stream&, const LinearParams<T>&);                                  \
  template bool is_whole(const Matmul&, const LinearParams<T>&);                                \
  template std::vector<cublaslt::Algorithm> cublaslt_proposals(Stream&, const LinearParams<T>&, \
                                                               int);                            \
  template void cublaslt_linear(Stream&, const LinearParams<T>&, const cublaslt::Algorithm&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding::cuda
