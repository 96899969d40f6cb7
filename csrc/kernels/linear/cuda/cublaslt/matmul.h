// Products through cuBLASLt, and what a session knows about its products: the fastest algorithm
// of each, and its biases in 16 bits.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/types.h"
#include "kernels/cuda/stream.h"
#include "kernels/linear/cuda/autotune.h"
#include "kernels/linear/cuda/cublaslt/cublaslt.h"
#include "kernels/linear/cuda/cublaslt/handles.h"

namespace decoding::cuda {

// Holds the partial sums of a product that is split over K: 512 rows of 1024 outputs, 8 parts.
constexpr size_t kMatmulWorkspace = 16 << 20;
// Holds as much of a quantized weight in 16 bits as stays in the L2 cache until it is multiplied.
constexpr size_t kMostDequantized = 32 << 20;

// y = activation(x W^T + bias) + residual as one call of cuBLASLt, all numbers in `type`.
struct Product {
  cudaDataType_t type;
  int rows, outputs, inputs;
  const void* x;         // [rows, inputs]
  const void* weight;    // [outputs, inputs]
  const void* bias;      // [outputs], may be null
  const void* residual;  // [rows, outputs], may be null, may alias y; null with an activation
  void* y;               // [rows, outputs], its rows `stride` apart
  int stride;
  Activation activation;  // none, relu or gelu_tanh
};

// Belongs to one session, which is used by one thread at a time.
class Matmul {
 public:
  // The device must be the current one. workspace: `bytes` of its memory, on kAlignment; what goes
  // beyond kMatmulWorkspace is for quantized weights in 16 bits.
  // deterministic: a row has the same bits whatever other rows there are, see linear.cu.
  Matmul(const Device& device, void* workspace, size_t bytes, bool deterministic = false);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  void workspace(void* workspace) { workspace_ = workspace; }
  size_t bytes() const { return bytes_; }  // that it needs

  // Room for a part of a quantized weight in 16 bits.
  void* dequantized() const { return static_cast<char*>(workspace_) + kMatmulWorkspace; }
  size_t dequantized_bytes() const { return bytes_ - workspace_bytes_; }

  // The library's own proposals, best first by its estimate.
  std::vector<cublaslt::Algorithm> algorithms(const Product& p, int most) const;
  // algorithm: proposed for this product, or for one that differs in its rows; where it does not
  // suit these rows, another one is taken.
  void multiply(cudaStream_t stream, const Product& p, const cublaslt::Algorithm& algorithm) const;

  // The copy of a bias in 16 bits, which is what cuBLASLt adds to numbers of 16 bits; null before
  // it is made. It is made in a warm-up; the bias must stay as it is from then on.
  void* narrow_bias(const float* bias) const;
  // Room for it.
  void* new_narrow_bias(const float* bias, int outputs);

  bool deterministic() const { return deterministic_; }
  Tuning& tuning() { return tuning_; }
  // The algorithm and time of each product.
  std::string report() const { return tuning_.report(); }

 private:
  const cublaslt::OwnHandle handle_;
  void* workspace_;
  const size_t bytes_, workspace_bytes_;  // all of it, cuBLASLt's
  const bool deterministic_;
  Tuning tuning_;
  std::map<const float*, void*> narrow_biases_;
};

}  // namespace decoding::cuda
