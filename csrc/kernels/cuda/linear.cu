// The contract on CUDA: our own kernels or cuBLASLt, whichever was measured to be faster for the
// product at hand.
//
// A rehearsal meets each product before a graph is captured: it times all ways to compute it
// (timing.h), remembers the best (tuning.h) and takes a copy of the bias in 16 bits. Products that
// nobody rehearsed are computed at once, by the way that is best as a rule.
//
// cuBLASLt does what it can of what follows the product: a bias in the type of y, relu and the tanh
// form of gelu, and the residual as the matrix that it adds to. A kernel of our own does the rest.
#include <algorithm>
#include <bit>
#include <vector>

#include "kernels/cuda/fused_linear.h"
#include "kernels/cuda/fused_linear_finish.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/timing.h"
#include "kernels/cuda/types.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/linear.h"
#include "kernels/norm.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kFewRows = 16;       // up to here our own kernels win as a rule
constexpr int kMostOwnRows = 512;  // above they are not even timed

// How many of cuBLASLt's proposals are timed. In float32, which is there to be exact, only the one
// that it takes by itself: others may add up in one long row what this one adds up in parts.
template <typename T>
constexpr int kAlgorithms = sizeof(T) < sizeof(float) ? 16 : 1;

template <typename T>
constexpr cudaDataType_t kType = CUDA_R_32F;
template <>
inline constexpr cudaDataType_t kType<half> = CUDA_R_16F;
template <>
inline constexpr cudaDataType_t kType<bfloat16> = CUDA_R_16BF;

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

// A thread holds the bias of `width` columns and goes down the rows.
template <typename T, int width>
__global__ void rest_kernel(RestParams<T> p) {
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) * width;
  float bias[width] = {};
  if (p.bias != nullptr && column < p.cols) {
#pragma unroll
    for (int i = 0; i < width; ++i) bias[i] = p.bias[column + i];
  }
  wait_for_previous();
  let_next_start();
  if (column >= p.cols) return;
  for (int row = blockIdx.y * blockDim.y + threadIdx.y; row < p.rows;
       row += gridDim.y * blockDim.y) {
    const int64_t at = int64_t(row) * p.stride + column;
    auto y = Vector<T, width>::load(p.y + at);
    Vector<T, width> residual{};
    if (p.residual != nullptr) residual = Vector<T, width>::load(p.residual + at);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      y.values[i] = from_float<T>(activate(y[i] + bias[i], p.activation) + residual[i]);
    }
    y.store(p.y + at);
  }
}

template <typename T>
void finish(Stream& stream, const RestParams<T>& p) {
  constexpr int kWidth = 16 / sizeof(T);
  const bool wide =
      p.cols % kWidth == 0 && aligned16<T>(p.y, p.stride) && aligned16<T>(p.residual, p.stride);
  const int vectors = wide ? p.cols / kWidth : p.cols;
  const unsigned x = std::min(256u, std::bit_ceil(static_cast<unsigned>(vectors))), y = 256 / x;
  const dim3 grid((vectors + x - 1) / x, std::min((p.rows + y - 1) / y, 65535u));
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

template <typename T>
bool is_whole(const Matmul& matmul, const LinearParams<T>& p) {
  return has_epilogue(p) && (p.bias == nullptr || bias_in_type<T>(matmul, p.bias) != nullptr);
}

template <typename T>
int stride_of(const LinearParams<T>& p) {
  return p.stride == 0 ? p.weight.outputs : p.stride;
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
void through_cublaslt(Stream& stream, const LinearParams<T>& p,
                      const cublaslt::Algorithm& algorithm) {
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

// Some of the outputs of p.
template <typename T>
LinearParams<T> outputs_of(const LinearParams<T>& p, int first, int count) {
  LinearParams<T> part = p;
  part.weight.data = static_cast<const T*>(p.weight.data) + int64_t(first) * p.weight.inputs;
  part.weight.outputs = count;
  if (p.bias != nullptr) part.bias = p.bias + first;
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

// What is left of p behind its norm.
template <typename T>
LinearParams<T> without_norm(const LinearParams<T>& p) {
  LinearParams<T> rest = p;
  if (p.norm.gamma != nullptr) rest.x = p.normed;
  rest.norm = {};
  rest.normed = nullptr;
  return rest;
}

template <typename T>
void run(Stream& stream, const LinearParams<T>& p, const Way& way) {
  if (way.variant >= 0 && !way.norm_apart) return fused_linear(stream, p, way.variant);
  if (p.norm.gamma != nullptr) {
    layer_norm<T>(
        stream, {.x = p.x, .norm = p.norm, .y = p.normed, .rows = p.rows, .cols = p.weight.inputs});
  }
  const LinearParams<T> rest = without_norm(p);
  if (way.variant >= 0) return fused_linear(stream, rest, way.variant);
  const int outputs = p.weight.outputs, most = outputs_in_cublaslt(stream.device(), rest);
  through_cublaslt(stream, outputs_of(rest, 0, most), way.algorithm);
  if (most < outputs) fused_linear(stream, outputs_of(rest, most, outputs - most), 0);
}

// The kernels of our own that compute p.
template <typename T>
std::vector<Way> own_ways(const Device& device, const LinearParams<T>& p) {
  std::vector<Way> ways;
  const int variants = fused_linear_variants(device, p);
  for (int variant = 0; variant < variants; ++variant) ways.push_back({.variant = variant});
  if (p.norm.gamma == nullptr) return ways;
  const int behind = fused_linear_variants(device, without_norm(p));
  for (int variant = 0; variant < behind; ++variant) {
    ways.push_back({.variant = variant, .norm_apart = true});
  }
  return ways;
}

template <typename T>
ProductKey key_of(const Matmul& matmul, const LinearParams<T>& p) {
  return {.type = kType<T>,
          .inputs = p.weight.inputs,
          .outputs = p.weight.outputs,
          .activation = p.activation,
          .norm = p.norm.gamma != nullptr,
          .bias = p.bias != nullptr,
          .residual = p.residual != nullptr,
          .whole = is_whole(matmul, p),
          .stride = stride_of(p),
          .rows = rows_bucket(p.rows)};
}

// The algorithms that cuBLASLt proposes for its share of p.
template <typename T>
std::vector<cublaslt::Algorithm> proposals(Stream& stream, const LinearParams<T>& p, int most) {
  const LinearParams<T> rest = without_norm(p);
  const int outputs = outputs_in_cublaslt(stream.device(), rest);
  const Matmul& matmul = stream.matmul();
  return matmul.algorithms(product_of(matmul, outputs_of(rest, 0, outputs)), most);
}

// Whether a way that another product of this key took can compute p: our own kernels ask for
// alignment.
template <typename T>
bool suits(const Device& device, const LinearParams<T>& p, const Way& way) {
  return way.variant < fused_linear_variants(device, way.norm_apart ? without_norm(p) : p);
}

// The best way that is known, else the one that is best as a rule.
template <typename T>
Way choose(Stream& stream, const LinearParams<T>& p) {
  Matmul& matmul = stream.matmul();
  const ProductKey key = key_of(matmul, p);
  const Tuned* known = matmul.tuning().find(key);
  if (known != nullptr && suits(stream.device(), p, known->way)) return known->way;
  if (p.rows <= kFewRows && fused_linear_variants(stream.device(), p) > 0) return {.variant = 0};
  const auto algorithms = proposals(stream, p, 1);
  CHECK(!algorithms.empty(), "cuBLASLt has no algorithm for [", p.rows, ", ", key.inputs, "] x [",
        key.outputs, ", ", key.inputs, "]^T");
  const Way way{.algorithm = algorithms.front()};
  matmul.tuning().remember(key, {.way = way});
  return way;
}

template <typename T>
void make_narrow_bias(Stream& stream, const float* bias, int outputs) {
  T* const narrow = static_cast<T*>(stream.matmul().new_narrow_bias(bias, outputs));
  narrow_kernel<<<(outputs + 255) / 256, 256, 0, stream.handle()>>>(bias, narrow, outputs);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaStreamSynchronize(stream.handle()));  // other streams will read it
}

template <typename T>
std::vector<Way> all_ways(Stream& stream, const LinearParams<T>& p) {
  std::vector<Way> ways;
  for (const auto& algorithm : proposals(stream, p, kAlgorithms<T>)) {
    ways.push_back({.algorithm = algorithm});
  }
  if (p.rows <= kMostOwnRows) {
    const auto own = own_ways(stream.device(), p);
    ways.insert(ways.end(), own.begin(), own.end());
  }
  return ways;
}

template <typename T>
void tune(Stream& stream, const LinearParams<T>& p) {
  Matmul& matmul = stream.matmul();
  const std::vector<Way> ways = all_ways(stream, p);
  std::vector<Launch> launches;
  for (const Way& way : ways) {
    launches.push_back([&, way](cudaStream_t handle, const void* weight) {
      Stream timed(handle, stream.device(), matmul);
      LinearParams<T> copy = p;
      copy.weight.data = weight;
      run(timed, copy, way);
    });
  }
  const size_t bytes = sizeof(T) * p.weight.outputs * p.weight.inputs;
  const auto times = time_cold(stream.device(), p.weight.data, bytes, launches);
  Tuned tuned;
  const auto improves = [](float time, float& best) {
    return time > 0 && (best == 0 || time < best) && (best = time, true);
  };
  for (size_t i = 0; i < times.size(); ++i) {
    if (i == 0 && ways[i].variant < 0) tuned.cublaslt_default = times[i];
    improves(times[i], ways[i].variant < 0 ? tuned.cublaslt_best : tuned.own_best);
    if (improves(times[i], tuned.time)) tuned.way = ways[i];
  }
  if (tuned.time == 0) return;  // no memory to time in
  matmul.tuning().remember(key_of(matmul, p), tuned);
}

template <typename T>
void rehearse(Stream& stream, const LinearParams<T>& p) {
  const BesideCaptures beside;
  Matmul& matmul = stream.matmul();
  const bool narrow = sizeof(T) < sizeof(float) && p.bias != nullptr && has_epilogue(p);
  if (narrow && matmul.narrow_bias(p.bias) == nullptr) {
    make_narrow_bias<T>(stream, p.bias, p.weight.outputs);
  }
  if (!matmul.tuning().enabled()) return;
  const Tuned* known = matmul.tuning().find(key_of(matmul, p));
  if (known != nullptr && known->time > 0) return;
  CUDA_CHECK(cudaStreamSynchronize(stream.handle()));  // it may still use the buffers of p
  tune(stream, p);
}

}  // namespace
}  // namespace cuda

template <typename T>
void linear(cuda::Stream& stream, const LinearParams<T>& p) {
  if (p.rows == 0) return;
  if (stream.rehearsal()) {
    cuda::rehearse(stream, p);
  } else {
    cuda::run(stream, p, cuda::choose(stream, p));
  }
}

#define INSTANTIATE(T) template void linear(cuda::Stream&, const LinearParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
