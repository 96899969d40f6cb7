// y = activation(norm(x) W^T + bias) + residual by our own kernels or by cuBLASLt, whichever was
// measured to be faster for the product at hand.
//
// A warm-up runs through all products before a graph is captured: it times every algorithm of each
// (timing.h), remembers the fastest (autotune.h) and copies the bias to 16 bits. In 16 bits those
// that are about as fast alone are then compared within a step (tune_in_place.h). A product without
// a warm-up is computed by the algorithm that is best as a rule.
//
// A deterministic session has the choice only among kernels of our own that add up in one order,
// with norm and gate always in the same kernels: so what was chosen for some number of rows, or by
// its time, shows in no bit.
#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/launch.cuh"
#include "kernels/linear/cuda/cublaslt/cublaslt_linear.h"
#include "kernels/linear/cuda/gemm.h"
#include "kernels/linear/cuda/quantized/linear_w8a8.h"
#include "kernels/linear/cuda/timing.h"
#include "kernels/linear/glu.h"
#include "kernels/linear/linear.h"
#include "kernels/rows/norm.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kFewRows = 16;       // up to here our own kernels win as a rule
constexpr int kMostOwnRows = 512;  // above they are not even timed
// Rows from which on it can pay to widen a quantized weight before.
constexpr int kFewestWidened = 64;
// By how much an algorithm with a separate norm or gate must win: one dependent launch more costs
// more in a step than where it is timed.
constexpr float kSeparate = 1.1f;
// How many algorithms are compared in a step, and how many times the fastest's time they may take.
// In float32 none: rows would less often be the same alone and beside others.
template <typename T>
constexpr size_t kMostCandidates = sizeof(T) < sizeof(float) ? 6 : 1;
constexpr float kCandidateRatio = 1.25f;

// How many of cuBLASLt's proposals are timed. In float32, which is there to be exact, only the
// first: algorithms differ in how they add up, and that one is tested beside torch's.
template <typename T>
constexpr int kAlgorithms = sizeof(T) < sizeof(float) ? 16 : 1;

// Writes the numbers that are there.
__global__ void rewrite_kernel(volatile uint32_t* data, size_t count) {
  wait_for_previous();
  let_next_start();
  const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) data[i] = data[i];
}

// What is left of p once the separate norm and gate are taken out.
template <typename T>
LinearParams<T> product_of(const LinearParams<T>& p, const Algorithm& algorithm) {
  LinearParams<T> product = algorithm.separate_gate ? before_gate(p) : p;
  if (algorithm.separate_norm) {
    product.x = p.normed;
    product.norm = {};
    product.normed = nullptr;
  }
  return product;
}

template <typename T>
void run(Stream& stream, const LinearParams<T>& p, const Algorithm& algorithm) {
  if (algorithm.separate_norm) {
    layer_norm<T>(
        stream, {.x = p.x, .norm = p.norm, .y = p.normed, .rows = p.rows, .cols = p.weight.inputs});
  }
  const LinearParams<T> product = product_of(p, algorithm);
  if (algorithm.variant >= 0) {
    fused_linear(stream, product, algorithm.variant);
  } else {
    cublaslt_linear(stream, product, algorithm.cublaslt);
  }
  if (algorithm.separate_gate) gate(stream, gate_behind(p));
}

// With cuBLASLt norm and gate are always separate.
template <typename T>
Algorithm separate_all(const LinearParams<T>& p) {
  return {.separate_norm = p.norm.gamma != nullptr, .separate_gate = p.gated != nullptr};
}

// Our own kernels that can compute p, those first that fuse most of it.
template <typename T>
std::vector<Algorithm> fused_algorithms(const Device& device, const LinearParams<T>& p) {
  std::vector<Algorithm> algorithms;
  const Algorithm most = separate_all(p);
  for (int apart = 0; apart < 4; ++apart) {
    Algorithm algorithm{.separate_norm = (apart & 1) != 0, .separate_gate = (apart & 2) != 0};
    if (algorithm.separate_norm > most.separate_norm) continue;
    if (algorithm.separate_gate > most.separate_gate) continue;
    const int variants = fused_linear_variants(device, product_of(p, algorithm));
    for (int variant = 0; variant < variants; ++variant) {
      algorithm.variant = variant;
      algorithms.push_back(algorithm);
    }
  }
  return algorithms;
}

// Those that give a row of p the same bits, whatever the number of rows. In float32 the kernel
// takes norm and gate along, in half precision those that take rows of any number do not.
template <typename T>
std::vector<Algorithm> deterministic_algorithms(const Device& device, const LinearParams<T>& p) {
  Algorithm algorithm = sizeof(T) < sizeof(float) ? separate_all(p) : Algorithm{};
  const LinearParams<T> product = product_of(p, algorithm);
  const int variants = fused_linear_variants(device, product);
  std::vector<Algorithm> algorithms;
  for (algorithm.variant = 0; algorithm.variant < variants; ++algorithm.variant) {
    if (adds_in_one_order(device, product, algorithm.variant)) algorithms.push_back(algorithm);
  }
  CHECK(!algorithms.empty(), "deterministic=True has no kernel for [", p.rows, ", ",
        p.weight.inputs, "] x [", p.weight.outputs, ", ", p.weight.inputs,
        "]^T, whose rows must be multiples of 16 bytes: load the model without it");
  return algorithms;
}

template <typename T>
ProductKey key_of(const Matmul& matmul, const LinearParams<T>& p) {
  return {.type = kType<T>,
          .weight = p.weight.kind,
          .inputs = p.weight.inputs,
          .outputs = p.weight.outputs,
          .activation = p.activation,
          .norm = p.norm.gamma != nullptr,
          .bias = p.bias != nullptr,
          .residual = p.residual != nullptr,
          .gated = p.gated != nullptr,
          .whole = is_whole(matmul, product_of(p, separate_all(p))),
          .deterministic = matmul.deterministic(),
          .stride = stride_of(p),
          .rows = rows_bucket(p.rows)};
}

// Whether the algorithm of another product with this key can compute p: our own kernels ask for
// alignment.
template <typename T>
bool supports(const Device& device, const LinearParams<T>& p, const Algorithm& algorithm) {
  return algorithm.variant < fused_linear_variants(device, product_of(p, algorithm));
}

// The best algorithm that is known, else the one that is best as a rule.
template <typename T>
Algorithm choose(Stream& stream, const LinearParams<T>& p) {
  Matmul& matmul = stream.matmul();
  const ProductKey key = key_of(matmul, p);
  const Tuned* known = matmul.tuning().nearest(key);
  if (known != nullptr && supports(stream.device(), p, known->algorithm)) return known->algorithm;
  if (matmul.deterministic()) {
    const auto alike = deterministic_algorithms(stream.device(), p);
    return p.rows <= kFewRows ? alike.front() : alike.back();
  }
  if (p.rows <= kFewRows) {
    const auto own = fused_algorithms(stream.device(), p);
    if (!own.empty()) return own.front();
  }
  Algorithm algorithm = separate_all(p);
  const auto proposals = cublaslt_proposals(stream, product_of(p, algorithm), 1);
  CHECK(!proposals.empty(), "cuBLASLt has no algorithm for [", p.rows, ", ", key.inputs, "] x [",
        key.outputs, ", ", key.inputs, "]^T");
  algorithm.cublaslt = proposals.front();
  matmul.tuning().remember(key, {.algorithm = algorithm});
  return algorithm;
}

template <typename T>
std::vector<Algorithm> all_algorithms(Stream& stream, const LinearParams<T>& p) {
  if (stream.deterministic()) return deterministic_algorithms(stream.device(), p);
  std::vector<Algorithm> algorithms, own;
  if (p.rows <= kMostOwnRows) own = fused_algorithms(stream.device(), p);
  const bool narrow = is_quantized(p.weight.kind) && p.rows < kFewestWidened;
  if (narrow && !own.empty()) return own;
  Algorithm algorithm = separate_all(p);
  for (const auto& proposal :
       cublaslt_proposals(stream, product_of(p, algorithm), kAlgorithms<T>)) {
    algorithm.cublaslt = proposal;
    algorithms.push_back(algorithm);
  }
  algorithms.insert(algorithms.end(), own.begin(), own.end());
  return algorithms;
}

template <typename T>
void tune(Stream& stream, const LinearParams<T>& p) {
  Matmul& matmul = stream.matmul();
  const std::vector<Algorithm> algorithms = all_algorithms(stream, p);
  std::vector<Launch> launches;
  for (const Algorithm& algorithm : algorithms) {
    launches.push_back([&, algorithm](cudaStream_t handle, const void* weight) {
      Stream timed(handle, stream.device(), matmul);
      LinearParams<T> copy = p;
      copy.weight.data = weight;
      run(timed, copy, algorithm);
    });
  }
  const auto write_x = [&](cudaStream_t handle, const void*) {
    Stream timed(handle, stream.device(), matmul);
    const size_t count = sizeof(T) * p.rows * p.weight.inputs / sizeof(uint32_t);
    launch(timed, rewrite_kernel, dim3(count / 256 + 1), dim3(256), 0,
           reinterpret_cast<uint32_t*>(const_cast<T*>(p.x)), count);
  };
  const bool quantized = is_quantized(p.weight.kind);
  const size_t row = quantized ? quantized_stride(p.weight.inputs) : sizeof(T) * p.weight.inputs;
  const size_t bytes = row * p.weight.outputs;
  const auto times = time_cold(stream.device(), p.weight.data, bytes, write_x, launches);
  Tuned tuned;
  std::vector<std::pair<float, Timed>> ranking;  // by what each costs
  const auto improves = [](float time, float& best) {
    return time > 0 && (best == 0 || time < best) && (best = time, true);
  };
  for (size_t i = 0; i < times.size(); ++i) {
    const bool own = algorithms[i].variant >= 0;
    if (i == 0 && !own) tuned.cublaslt_default = times[i];
    improves(times[i], own ? tuned.own_best : tuned.cublaslt_best);
    if (times[i] == 0) continue;
    float cost = times[i];
    if (algorithms[i].separate_norm) cost *= kSeparate;
    if (algorithms[i].separate_gate) cost *= kSeparate;
    ranking.push_back({cost, {algorithms[i], times[i]}});
  }
  if (ranking.empty()) return;  // no memory to time in
  std::ranges::stable_sort(ranking, {}, &std::pair<float, Timed>::first);
  std::vector<Timed> candidates;
  for (const auto& [cost, timed] : ranking) {
    if (cost > kCandidateRatio * ranking.front().first || candidates.size() == kMostCandidates<T>)
      break;
    candidates.push_back(timed);
  }
  tuned.algorithm = candidates.front().algorithm;
  tuned.time = candidates.front().time;
  matmul.tuning().remember(key_of(matmul, p), tuned, std::move(candidates));
}

template <typename T>
void warm_up(Stream& stream, const LinearParams<T>& p) {
  const BesideCaptures beside;
  Matmul& matmul = stream.matmul();
  if (!matmul.deterministic()) prepare_bias(stream, product_of(p, separate_all(p)));
  if (!matmul.tuning().enabled()) return;
  matmul.tuning().visit(key_of(matmul, p));
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
  if constexpr (sizeof(T) < sizeof(float)) {
    if (p.quantized.data != nullptr) return cuda::quantized_linear(stream, p);
  }
  if (stream.warming_up()) {
    cuda::warm_up(stream, p);
  } else {
    cuda::run(stream, p, cuda::choose(stream, p));
  }
}

#define INSTANTIATE(T) template void linear(cuda::Stream&, const LinearParams<T>&);
DECODING_FOR_TYPES(INSTANTIATE)

}  // namespace decoding
