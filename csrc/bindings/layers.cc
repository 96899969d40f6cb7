// kernels.*: embed, layer_norm, linear and the attentions.
#include <pybind11/pybind11.h>

#include "bindings/kernels.h"
#include "bindings/tensor.h"
#include "kernels/attention.h"
#include "kernels/embed.h"
#include "kernels/linear.h"
#include "kernels/norm.h"

namespace decoding {
namespace {

using py::object;
using std::string;

template <typename T>
T* data(const object& tensor, const string& name, const std::vector<int64_t>& shape) {
  return TensorView::of(tensor, name).data<T>(shape);
}

// Null where Python gives None.
template <typename T>
T* data_or_null(const object& tensor, const string& name, const std::vector<int64_t>& shape) {
  return tensor.is_none() ? nullptr : data<T>(tensor, name, shape);
}

// The sizes of a tensor of `axes` dimensions.
std::vector<int64_t> sizes(const object& tensor, const string& name, size_t axes) {
  const TensorView view = TensorView::of(tensor, name);
  CHECK(view.shape().size() == axes, name, " must have ", axes, " dimensions, has ",
        view.shape().size());
  return view.shape();
}

Activation activation_of(const string& name) {
  if (name == "none") return Activation::none;
  if (name == "relu") return Activation::relu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  CHECK(name == "silu", "activation must be none, relu, gelu, gelu_tanh or silu, got ", name);
  return Activation::silu;
}

void bind_embed(py::module_& kernels) {
  kernels.def(
      "embed",
      [](object ids, object at, object token_table, object position_table, object gamma,
         object beta, object y, float scale, float eps, const string& isa, int threads) {
        const auto shape = sizes(y, "y", 2);
        const int64_t rows = shape[0], hidden = shape[1];
        const EmbedParams<float> p{
            .ids = data<int32_t>(ids, "ids", {rows}),
            .at = data<int32_t>(at, "at", {rows}),
            .token_table = data<float>(token_table, "token_table", {-1, hidden}),
            .position_table = data_or_null<float>(position_table, "position_table", {-1, hidden}),
            .gamma = data_or_null<float>(gamma, "gamma", {hidden}),
            .beta = data_or_null<float>(beta, "beta", {hidden}),
            .y = data<float>(y, "y", {rows, hidden}),
            .rows = static_cast<int>(rows),
            .hidden = static_cast<int>(hidden),
            .scale = scale,
            .eps = eps};
        on_cpu(isa, threads, [&](auto& stream) { embed(stream, p); });
      },
      py::arg("ids"), py::arg("at"), py::arg("token_table"), py::arg("position_table"),
      py::arg("gamma"), py::arg("beta"), py::arg("y"), py::arg("scale"), py::arg("eps"),
      py::kw_only(), py::arg("isa"), py::arg("threads"));
}

void bind_layer_norm(py::module_& kernels) {
  kernels.def(
      "layer_norm",
      [](object x, object gamma, object beta, object y, float eps, const string& isa, int threads) {
        const auto shape = sizes(x, "x", 2);
        const LayerNormParams<float> p{.x = data<float>(x, "x", shape),
                                       .gamma = data<float>(gamma, "gamma", {shape[1]}),
                                       .beta = data_or_null<float>(beta, "beta", {shape[1]}),
                                       .y = data<float>(y, "y", shape),
                                       .rows = static_cast<int>(shape[0]),
                                       .cols = static_cast<int>(shape[1]),
                                       .eps = eps};
        on_cpu(isa, threads, [&](auto& stream) { layer_norm(stream, p); });
      },
      py::arg("x"), py::arg("gamma"), py::arg("beta"), py::arg("y"), py::arg("eps"), py::kw_only(),
      py::arg("isa"), py::arg("threads"));
}

void bind_linear(py::module_& kernels) {
  kernels.def(
      "linear",
      [](object x, object weight, object bias, object residual, object y, const string& activation,
         const string& isa, int threads) {
        const auto in = sizes(x, "x", 2), out = sizes(y, "y", 2);
        const int64_t rows = in[0], inputs = in[1], outputs = out[1];
        const int64_t panels = (outputs + kPanel - 1) / kPanel;
        const LinearParams<float> p{
            .x = data<float>(x, "x", {rows, inputs}),
            .weight = {.data = data<float>(weight, "weight", {panels, inputs, kPanel}),
                       .outputs = static_cast<int>(outputs),
                       .inputs = static_cast<int>(inputs)},
            .bias = data_or_null<float>(bias, "bias", {outputs}),
            .residual = data_or_null<float>(residual, "residual", {rows, outputs}),
            .y = data<float>(y, "y", {rows, outputs}),
            .rows = static_cast<int>(rows),
            .activation = activation_of(activation)};
        on_cpu(isa, threads, [&](auto& stream) { linear(stream, p); });
      },
      py::arg("x"), py::arg("weight"), py::arg("bias"), py::arg("residual"), py::arg("y"),
      py::arg("activation"), py::kw_only(), py::arg("isa"), py::arg("threads"));
}

void bind_packed_attention(py::module_& kernels) {
  kernels.def(
      "packed_attention",
      [](object qkv, object offsets, object y, float scale, bool causal, const string& isa,
         int threads) {
        const auto shape = sizes(qkv, "qkv", 4);
        const int64_t tokens = shape[0], heads = shape[2], dim = shape[3];
        CHECK(dim <= kMaxHeadDim, "head_dim must be at most ", kMaxHeadDim, ", got ", dim);
        const float* q = data<float>(qkv, "qkv", {tokens, 3, heads, dim});
        const PackedAttentionParams<float> p{
            .q = q,
            .k = q + heads * dim,
            .v = q + 2 * heads * dim,
            .offsets = data<int32_t>(offsets, "offsets", {-1}),
            .y = data<float>(y, "y", {tokens, heads, dim}),
            .sentences = static_cast<int>(sizes(offsets, "offsets", 1)[0] - 1),
            .heads = static_cast<int>(heads),
            .head_dim = static_cast<int>(dim),
            .stride = static_cast<int>(3 * heads * dim),
            .scale = scale,
            .causal = causal};
        on_cpu(isa, threads, [&](auto& stream) { packed_attention(stream, p); });
      },
      "qkv: [tokens, 3, N, D]", py::arg("qkv"), py::arg("offsets"), py::arg("y"), py::arg("scale"),
      py::arg("causal"), py::kw_only(), py::arg("isa"), py::arg("threads"));
}

void bind_store_shared(py::module_& kernels) {
  kernels.def(
      "store_shared",
      [](object kv, object shared_k, object shared_v, const string& isa, int threads) {
        const auto shape = sizes(kv, "kv", 4);
        const int64_t tokens = shape[0], heads = shape[2], dim = shape[3];
        const int64_t capacity = sizes(shared_k, "shared_k", 3)[1];
        const float* k = data<float>(kv, "kv", {tokens, 2, heads, dim});
        const StoreSharedParams<float> p{
            .k = k,
            .v = k + heads * dim,
            .shared_k = data<float>(shared_k, "shared_k", {heads, capacity, dim}),
            .shared_v = data<float>(shared_v, "shared_v", {heads, capacity, dim}),
            .tokens = static_cast<int>(tokens),
            .heads = static_cast<int>(heads),
            .head_dim = static_cast<int>(dim),
            .stride = static_cast<int>(2 * heads * dim),
            .capacity = static_cast<int>(capacity)};
        on_cpu(isa, threads, [&](auto& stream) { store_shared(stream, p); });
      },
      "kv: [tokens, 2, N, D]", py::arg("kv"), py::arg("shared_k"), py::arg("shared_v"),
      py::kw_only(), py::arg("isa"), py::arg("threads"));
}

void bind_decode_attention(py::module_& kernels) {
  kernels.def(
      "decode_attention",
      [](object qkv, object live, object y, float scale, int beams, object shared_k,
         object shared_v, object shared_offsets, object self_k, object self_v, object slots,
         int position, const string& isa, int threads) {
        const auto shape = sizes(qkv, "qkv", 4);
        const int64_t rows = shape[0], parts = shape[1], heads = shape[2], dim = shape[3];
        CHECK(dim <= kMaxHeadDim, "head_dim must be at most ", kMaxHeadDim, ", got ", dim);
        const bool history = !self_k.is_none(), shared = !shared_k.is_none();
        CHECK(parts == (history ? 3 : 1), "qkv must hold ", history ? 3 : 1, " parts, has ", parts);
        const int64_t target = history ? sizes(self_k, "self_k", 4)[2] : 0;
        const int64_t capacity = shared ? sizes(shared_k, "shared_k", 3)[1] : 0;
        const float* q = data<float>(qkv, "qkv", shape);
        const DecodeAttentionParams<float> p{
            .q = q,
            .k = history ? q + heads * dim : nullptr,
            .v = history ? q + 2 * heads * dim : nullptr,
            .shared_k = data_or_null<float>(shared_k, "shared_k", {heads, capacity, dim}),
            .shared_v = data_or_null<float>(shared_v, "shared_v", {heads, capacity, dim}),
            .shared_offsets = data_or_null<int32_t>(shared_offsets, "shared_offsets", {-1}),
            .self_k = data_or_null<float>(self_k, "self_k", {-1, heads, target, dim}),
            .self_v = data_or_null<float>(self_v, "self_v", {-1, heads, target, dim}),
            .slots = data_or_null<int32_t>(slots, "slots", {-1, target}),
            .live = data<int32_t>(live, "live", {rows / beams}),
            .y = data<float>(y, "y", {rows, heads, dim}),
            .live_count = static_cast<int>(rows / beams),
            .beams = beams,
            .heads = static_cast<int>(heads),
            .head_dim = static_cast<int>(dim),
            .stride = static_cast<int>(parts * heads * dim),
            .shared_capacity = static_cast<int>(capacity),
            .target = static_cast<int>(target),
            .position = position,
            .scale = scale};
        on_cpu(isa, threads, [&](auto& stream) { decode_attention(stream, p); });
      },
      "qkv: [rows, 3, N, D], or [rows, 1, N, D], only q, where there is no history", py::arg("qkv"),
      py::arg("live"), py::arg("y"), py::arg("scale"), py::arg("beams"), py::kw_only(),
      py::arg("shared_k") = py::none(), py::arg("shared_v") = py::none(),
      py::arg("shared_offsets") = py::none(), py::arg("self_k") = py::none(),
      py::arg("self_v") = py::none(), py::arg("slots") = py::none(), py::arg("position") = 0,
      py::arg("isa"), py::arg("threads"));
}

}  // namespace

void bind_layers(py::module_& kernels) {
  bind_embed(kernels);
  bind_layer_norm(kernels);
  bind_linear(kernels);
  bind_packed_attention(kernels);
  bind_store_shared(kernels);
  bind_decode_attention(kernels);
}

}  // namespace decoding
