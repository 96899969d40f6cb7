// kernels.*: depthwise convolution.
#include "kernels/conv/depthwise.h"

#include "bindings/testing/kernels.h"

namespace decoding {
namespace {

using py::object;
using std::string;

// weights: float32 [N, K]; or scores: [rows, N, K].
template <typename T>
DepthwiseWeights<T> weights_of(const Tensors& in, const object& weights, const object& scores,
                               int64_t rows, int64_t heads) {
  const bool made = weights.is_none();
  const int64_t size = made ? in.sizes(scores, "scores", 3)[2] : in.sizes(weights, "weights", 2)[1];
  CHECK(size > 0 && size <= kMaxKernelSize, "kernel_size must be 1 to ", kMaxKernelSize, ", got ",
        size);
  return {.weights = in.data_or_null<float>(weights, "weights", {heads, size}),
          .scores = made ? in.data<T>(scores, "scores", {rows, heads, size}) : nullptr,
          .kernel_size = static_cast<int>(size)};
}

void bind_packed_depthwise(py::module_& kernels) {
  kernels.def(
      "packed_depthwise",
      [](object x, object offsets, object y, bool causal, object weights, object scores,
         int longest, const string& isa, int threads) {
        run_kernel(
            y, isa, threads,
            [&]<typename T>(const Tensors& in) {
              const auto shape = in.sizes(y, "y", 3);
              const int64_t tokens = shape[0], heads = shape[1];
              return PackedDepthwiseParams<T>{
                  .x = in.data<T>(x, "x", shape),
                  .weights = weights_of<T>(in, weights, scores, tokens, heads),
                  .offsets = in.data<int32_t>(offsets, "offsets", {-1}),
                  .y = in.data<T>(y, "y", shape),
                  .sentences = static_cast<int>(in.sizes(offsets, "offsets", 1)[0] - 1),
                  .longest = longest > 0 ? longest : static_cast<int>(tokens),
                  .heads = static_cast<int>(heads),
                  .head_dim = static_cast<int>(shape[2]),
                  .causal = causal};
            },
            [](auto& stream, const auto& params) { packed_depthwise(stream, params); });
      },
      "x, y: [tokens, N, D]; weights: float32 [N, K], or scores: [tokens, N, K]; longest: most "
      "tokens of a sentence, 0: all of them",
      py::arg("x"), py::arg("offsets"), py::arg("y"), py::arg("causal"), py::kw_only(),
      py::arg("weights") = py::none(), py::arg("scores") = py::none(), py::arg("longest") = 0,
      py::arg("isa"), py::arg("threads"));
}

void bind_decode_depthwise(py::module_& kernels) {
  kernels.def(
      "decode_depthwise",
      [](object x, object inputs, object cache_indirection, object active, object state, object y,
         int beams, object weights, object scores, const string& isa, int threads) {
        run_with_cache(
            y, inputs, isa, threads,
            [&]<typename T, typename C>(const Tensors& in) {
              const auto shape = in.sizes(y, "y", 3);
              const int64_t rows = shape[0], heads = shape[1], dim = shape[2];
              const auto kept = in.sizes(inputs, "inputs", 4);
              const int64_t history = in.sizes(cache_indirection, "cache_indirection", 3)[2];
              DecodeDepthwiseParams<T, C> params{
                  .state = step_state(in, state),
                  .x = in.data<T>(x, "x", shape),
                  .weights = weights_of<T>(in, weights, scores, rows, heads),
                  .inputs = in.data<C>(inputs, "inputs", {kept[0], heads, kept[2], dim}),
                  .cache_indirection = in.data<int32_t>(cache_indirection, "cache_indirection",
                                                        {2, kept[0], history}),
                  .active = active_sentences(in, active, rows / beams),
                  .y = in.data<T>(y, "y", shape),
                  .sentences = static_cast<int>(rows / beams),
                  .beams = beams,
                  .heads = static_cast<int>(heads),
                  .head_dim = static_cast<int>(dim),
                  .ring = static_cast<int>(kept[2]),
                  .slots = beams,
                  .total_rows = static_cast<int>(kept[0]),
                  .history = static_cast<int>(history)};
              CHECK(params.ring >= params.weights.kernel_size, "inputs must have room for ",
                    params.weights.kernel_size, " positions, got ", params.ring);
              return params;
            },
            [](auto& stream, const auto& params) { decode_depthwise(stream, params); });
      },
      "x, y: [rows, N, D]; inputs: [total_rows, N, ring, D]; active: [rows / beams, 3], id, "
      "number and position of each sentence; state: number, active_count; weights and scores as "
      "above",
      py::arg("x"), py::arg("inputs"), py::arg("cache_indirection"), py::arg("active"),
      py::arg("state"), py::arg("y"), py::arg("beams"), py::kw_only(),
      py::arg("weights") = py::none(), py::arg("scores") = py::none(), py::arg("isa"),
      py::arg("threads"));
}

}  // namespace

void bind_depthwise(py::module_& kernels) {
  bind_packed_depthwise(kernels);
  bind_decode_depthwise(kernels);
}

}  // namespace decoding
