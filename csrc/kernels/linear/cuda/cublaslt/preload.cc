#include "kernels/linear/cuda/cublaslt/preload.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <tuple>

#include "kernels/cuda/resources.h"
#include "kernels/linear/cuda/cublaslt/matmul.h"

namespace decoding::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLongest{400};
constexpr int kRows = 256, kWidth = 1024;  // of products, at most: the kernels are the same
constexpr size_t kMatrix = sizeof(float) * kWidth * kWidth;

// The key's product, of few rows, inputs and outputs. memory: of four matrices.
Product small_product(const ProductKey& key, std::byte* memory) {
  const auto matrix = [&](int index) { return memory + index * kMatrix; };
  const int outputs = std::min(key.outputs / 8 * 8, kWidth);
  const bool adds = key.residual && key.activation == Activation::none;
  return {.type = key.type,
          .rows = std::min(key.rows, kRows),
          .outputs = outputs,
          .inputs = std::min(key.inputs, kWidth),
          .x = matrix(0),
          .weight = matrix(1),
          .bias = key.bias && key.whole ? matrix(2) : nullptr,
          .residual = adds ? matrix(2) : nullptr,
          .y = matrix(3),
          .stride = outputs,
          .activation = key.whole && !key.gated ? key.activation : Activation::none};
}

}  // namespace

int load_tuned_kernels(int id) {
  const Clock::time_point end = Clock::now() + kLongest;
  const UseDevice use(id);
  const Device device = Device::of(id);
  const DeviceMemory memory(kMatmulWorkspace + 4 * kMatrix, id);
  Matmul matmul(device, memory.data(), kMatmulWorkspace);
  const OwnStream stream;
  std::set<std::tuple<cudaDataType_t, bool, bool, Activation, cublaslt::Algorithm>> launched;
  for (const auto& [key, tuned] : matmul.tuning().known()) {
    if (tuned.algorithm.variant >= 0 || key.outputs < 8) continue;
    const cublaslt::Algorithm& algorithm = tuned.algorithm.cublaslt;
    const Product p = small_product(key, memory.data() + kMatmulWorkspace);
    const auto [place, is_new] =
        launched.emplace(p.type, p.bias != nullptr, p.residual != nullptr, p.activation, algorithm);
    if (is_new) matmul.multiply(stream.handle(), p, algorithm);
    if (Clock::now() > end) break;
  }
  CUDA_CHECK(cudaStreamSynchronize(stream.handle()));
  return static_cast<int>(launched.size());
}

}  // namespace decoding::cuda
