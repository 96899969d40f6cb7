// The contract on CUDA: our own kernels or cuBLASLt, whichever was measured to be faster for the
// product at hand.
//
// A rehearsal meets each product before a graph is captured: it times all ways to compute it
// (timing.h), remembers the best (autotune.h) and takes a copy of the bias in 16 bits. Products
// that nobody rehearsed are computed at once, by the way that is best as a rule.
#include <vector>

#include "kernels/cuda/launch.cuh"
#include "kernels/linear/cuda/cublaslt_linear.h"
#include "kernels/linear/cuda/gemm.h"
#include "kernels/linear/cuda/timing.h"
#include "kernels/linear/glu.h"
#include "kernels/linear/linear.h"
#include "kernels/rows/norm.h"

namespace decoding {
namespace cuda {
namespace {

constexpr int kFewRows = 16;       // up to here our own kernels win as a rule
constexpr int kMostOwnRows = 512;  // above they are not even timed
// By how much a way with the norm or the gate as a kernel of its own must win: a stage more costs
// more in a step than it does where it is timed.
constexpr float kApart = 1.1f;

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

// What is left of p between the kernels that a way takes beside the product.
template <typename T>
LinearParams<T> product_of(const LinearParams<T>& p, const Way& way) {
  LinearParams<T> product = way.gate_apart ? before_gate(p) : p;
  if (way.norm_apart) {
    product.x = p.normed;
    product.norm = {};
    product.normed = nullptr;
  }
  return product;
}

template <typename T>
void run(Stream& stream, const LinearParams<T>& p, const Way& way) {
  if (way.norm_apart) {
    layer_norm<T>(
        stream, {.x = p.x, .norm = p.norm, .y = p.normed, .rows = p.rows, .cols = p.weight.inputs});
  }
  const LinearParams<T> product = product_of(p, way);
  if (way.variant >= 0) {
    fused_linear(stream, product, way.variant);
  } else {
    cublaslt_linear(stream, product, way.algorithm);
  }
  if (way.gate_apart) gate(stream, gate_behind(p));
}

// What cuBLASLt's ways have in common.
template <typename T>
Way all_apart(const LinearParams<T>& p) {
  return {.norm_apart = p.norm.gamma != nullptr, .gate_apart = p.gated != nullptr};
}

// The kernels of our own that compute p, those first that take all of it along.
template <typename T>
std::vector<Way> own_ways(const Device& device, const LinearParams<T>& p) {
  std::vector<Way> ways;
  const Way most = all_apart(p);
  for (int apart = 0; apart < 4; ++apart) {
    Way way{.norm_apart = (apart & 1) != 0, .gate_apart = (apart & 2) != 0};
    if (way.norm_apart > most.norm_apart || way.gate_apart > most.gate_apart) continue;
    const int variants = fused_linear_variants(device, product_of(p, way));
    for (way.variant = 0; way.variant < variants; ++way.variant) ways.push_back(way);
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
          .gated = p.gated != nullptr,
          .whole = is_whole(matmul, product_of(p, all_apart(p))),
          .stride = stride_of(p),
          .rows = rows_bucket(p.rows)};
}

// Whether a way that another product of this key took can compute p: our own kernels ask for
// alignment.
template <typename T>
bool suits(const Device& device, const LinearParams<T>& p, const Way& way) {
  return way.variant < fused_linear_variants(device, product_of(p, way));
}

// The best way that is known, else the one that is best as a rule.
template <typename T>
Way choose(Stream& stream, const LinearParams<T>& p) {
  Matmul& matmul = stream.matmul();
  const ProductKey key = key_of(matmul, p);
  const Tuned* known = matmul.tuning().find(key);
  if (known != nullptr && suits(stream.device(), p, known->way)) return known->way;
  if (p.rows <= kFewRows) {
    const auto own = own_ways(stream.device(), p);
    if (!own.empty()) return own.front();
  }
  Way way = all_apart(p);
  const auto algorithms = cublaslt_proposals(stream, product_of(p, way), 1);
  CHECK(!algorithms.empty(), "cuBLASLt has no algorithm for [", p.rows, ", ", key.inputs, "] x [",
        key.outputs, ", ", key.inputs, "]^T");
  way.algorithm = algorithms.front();
  matmul.tuning().remember(key, {.way = way});
  return way;
}

template <typename T>
std::vector<Way> all_ways(Stream& stream, const LinearParams<T>& p) {
  std::vector<Way> ways;
  Way way = all_apart(p);
  for (const auto& algorithm : cublaslt_proposals(stream, product_of(p, way), kAlgorithms<T>)) {
    way.algorithm = algorithm;
    ways.push_back(way);
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
  const auto write_x = [&](cudaStream_t handle, const void*) {
    Stream timed(handle, stream.device(), matmul);
    const size_t count = sizeof(T) * p.rows * p.weight.inputs / sizeof(uint32_t);
    launch(timed, rewrite_kernel, dim3(count / 256 + 1), dim3(256), 0,
           reinterpret_cast<uint32_t*>(const_cast<T*>(p.x)), count);
  };
  const size_t bytes = sizeof(T) * p.weight.outputs * p.weight.inputs;
  const auto times = time_cold(stream.device(), p.weight.data, bytes, write_x, launches);
  Tuned tuned;
  float least = 0;
  const auto improves = [](float time, float& best) {
    return time > 0 && (best == 0 || time < best) && (best = time, true);
  };
  for (size_t i = 0; i < times.size(); ++i) {
    const bool own = ways[i].variant >= 0;
    if (i == 0 && !own) tuned.cublaslt_default = times[i];
    improves(times[i], own ? tuned.own_best : tuned.cublaslt_best);
    float cost = times[i];
    if (ways[i].norm_apart) cost *= kApart;
    if (ways[i].gate_apart) cost *= kApart;
    if (improves(cost, least)) tuned.way = ways[i], tuned.time = times[i];
  }
  if (tuned.time == 0) return;  // no memory to time in
  matmul.tuning().remember(key_of(matmul, p), tuned);
}

template <typename T>
void rehearse(Stream& stream, const LinearParams<T>& p) {
  const BesideCaptures beside;
  Matmul& matmul = stream.matmul();
  prepare_bias(stream, product_of(p, all_apart(p)));
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
