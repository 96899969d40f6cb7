#include "bindings/model.h"

#include <pybind11/stl.h>

#include "bindings/activation.h"
#include "bindings/tensor.h"
#include "kernels/attention/head_dim.h"
#include "kernels/conv/depthwise.h"

namespace decoding {
namespace {

PositionBias position_bias(const std::string& name) {
  if (name == "none") return PositionBias::none;
  if (name == "alibi") return PositionBias::alibi;
  CHECK(name == "relative", "position_bias must be none, alibi or relative, got ", name);
  return PositionBias::relative;
}

// [layers], of one number for all layers or one for each.
std::vector<int> by_layer(const py::handle& from, const char* name, int layers) {
  const py::object value = from.attr(name);
  if (py::isinstance<py::int_>(value)) return std::vector<int>(layers, value.cast<int>());
  const auto each = value.cast<std::vector<int>>();
  CHECK(static_cast<int>(each.size()) == layers, name, " must be one number or ", layers, ", got ",
        each.size());
  return each;
}

// Throws where a stack's convolution does not fit it.
void check_convolution(const StackSpec& spec) {
  const ConvolutionSpec& convolution = *spec.convolution;
  CHECK(static_cast<int>(convolution.kernel_sizes.size()) == spec.layers,
        "kernel_sizes must have one value per layer, got ", convolution.kernel_sizes.size());
  for (const int size : convolution.kernel_sizes) {
    CHECK(size > 0 && size <= kMaxKernelSize, "kernel_sizes must be 1 to ", kMaxKernelSize,
          ", got ", size);
  }
  CHECK(!spec.rotary && !spec.head_norm && spec.position_bias == PositionBias::none &&
            spec.window.empty() && spec.attention_cap == 0.0f,
        "convolutions know nothing of queries and keys");
}

// Throws where a stack's numbers do not belong together.
void check_stack(const StackSpec& spec) {
  CHECK(spec.head_dim > 0 && spec.head_dim <= kMaxHeadDim, "head_dim must be 1 to ", kMaxHeadDim,
        ", got ", spec.head_dim);
  for (int i = 0; i < spec.layers; ++i) {
    const int heads = spec.heads[i], kv_heads = spec.kv_heads[i];
    CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, "kv_heads must divide the ", heads,
          " heads of layer ", i, ", got ", kv_heads);
    CHECK(heads == spec.heads[0] || spec.position_bias == PositionBias::none,
          "position_bias needs as many heads in each layer");
  }
  CHECK(static_cast<int>(spec.attention_scale.size()) == spec.layers,
        "attention_scale must have one value per layer, got ", spec.attention_scale.size());
  CHECK(spec.window.empty() || static_cast<int>(spec.window.size()) == spec.layers,
        "window must have one value per layer or none, got ", spec.window.size());
  CHECK(!spec.parallel || spec.pre_norm, "parallel blocks need pre_norm");
  CHECK(!spec.shared_norm || spec.parallel, "shared_norm needs parallel blocks");
  CHECK(!spec.post_norm || spec.pre_norm, "post_norm needs pre_norm");
  const bool tells_places =
      spec.rotary || spec.position_bias != PositionBias::none || !spec.window.empty();
  CHECK(spec.types == 1 || !tells_places, "types need positions from a table alone");
  CHECK(spec.reach >= 0, "reach must not be negative, got ", spec.reach);
  if (spec.convolution) check_convolution(spec);
  if (!spec.rotary) return;
  CHECK(spec.rotary->size > 0 && spec.rotary->size <= spec.head_dim && spec.rotary->size % 2 == 0,
        "rotary positions rotate an even part of the ", spec.head_dim, " numbers of a head, got ",
        spec.rotary->size);
  const int tables = spec.rotary->tables;
  CHECK(tables > 0 && int64_t{tables} * spec.positions < (int64_t{1} << 31), tables,
        " tables of rotary positions must be few, or positions less than ", spec.positions);
}

StackSpec stack_spec(const py::handle& from) {
  const auto number = [&](const char* name) { return from.attr(name).cast<int>(); };
  const auto flag = [&](const char* name) { return from.attr(name).cast<bool>(); };
  const int layers = number("layers");
  StackSpec spec{.layers = layers,
                 .hidden = number("hidden"),
                 .head_dim = number("head_dim"),
                 .heads = by_layer(from, "heads", layers),
                 .kv_heads = by_layer(from, "kv_heads", layers),
                 .ffn = by_layer(from, "ffn", layers),
                 .vocab = number("vocab"),
                 .positions = number("positions"),
                 .activation = activation_of(from.attr("activation").cast<std::string>()),
                 .embed_scale = from.attr("embed_scale").cast<float>(),
                 .embed_norm = flag("embed_norm"),
                 .pre_norm = flag("pre_norm"),
                 .final_norm = flag("final_norm"),
                 .eps = from.attr("eps").cast<float>(),
                 .attention_scale = from.attr("attention_scale").cast<std::vector<float>>(),
                 .types = number("types"),
                 .rms = flag("rms"),
                 .gated = flag("gated"),
                 .parallel = flag("parallel"),
                 .shared_norm = flag("shared_norm"),
                 .post_norm = flag("post_norm"),
                 .head_norm = flag("head_norm"),
                 .rotary = std::nullopt,
                 .position_bias = position_bias(from.attr("position_bias").cast<std::string>()),
                 .bias_by_layer = flag("bias_by_layer"),
                 .reach = number("reach"),
                 .attention_cap = from.attr("attention_cap").cast<float>(),
                 .window = from.attr("window").cast<std::vector<int>>(),
                 .convolution = std::nullopt,
                 .int8_activations = flag("int8_activations")};
  if (const py::object rotary = from.attr("rotary"); !rotary.is_none()) {
    spec.rotary = {.size = rotary.attr("size").cast<int>(),
                   .interleaved = rotary.attr("interleaved").cast<bool>(),
                   .factor = rotary.attr("factor").cast<float>(),
                   .tables = rotary.attr("tables").cast<int>(),
                   .original = rotary.attr("original").cast<int>()};
  }
  if (const py::object convolution = from.attr("convolution"); !convolution.is_none()) {
    spec.convolution = {.kernel_sizes = convolution.attr("kernel_sizes").cast<std::vector<int>>(),
                        .dynamic = convolution.attr("dynamic").cast<bool>(),
                        .gated = convolution.attr("gated").cast<bool>()};
  }
  const py::object tokens = from.attr("tokens");  // a range
  spec.first_token = tokens.attr("start").cast<int>();
  spec.tokens = tokens.attr("stop").cast<int>() - spec.first_token;
  CHECK(0 <= spec.first_token && 0 < spec.tokens && spec.first_token <= spec.vocab - spec.tokens,
        "tokens must be a part of the ", spec.vocab, " of the vocabulary");
  for (int i = 0; i < layers; ++i) {
    if (spec.kv_heads[i] == 0) spec.kv_heads[i] = spec.heads[i];
  }
  check_stack(spec);
  return spec;
}

}  // namespace

StackSpec encoder_spec(const py::handle& from) {
  StackSpec spec = stack_spec(from);
  CHECK(!spec.rotary || spec.rotary->tables == 1, "an encoder has one table of frequencies");
  return spec;
}

ModelSpec model_spec(const py::handle& from) {
  ModelSpec spec{.encoder = std::nullopt,
                 .decoder = stack_spec(from.attr("decoder")),
                 .logits_cap = from.attr("logits_cap").cast<float>()};
  if (!from.attr("encoder").is_none()) spec.encoder = encoder_spec(from.attr("encoder"));
  CHECK(!spec.encoder || (!spec.decoder.parallel && spec.decoder.kv_heads == spec.decoder.heads),
        "a decoder with an encoder has no parallel blocks, and keys of every head");
  CHECK(spec.encoder || !spec.decoder.convolution, "a decoder alone has no convolutions");
  return spec;
}

WeightTable weight_table(const py::dict& weights, const std::string& device,
                         std::optional<WeightKind> only) {
  WeightTable table(only);
  for (const auto& [key, tensor] : weights) {
    const auto name = key.cast<std::string>();
    const auto view = TensorView::of(tensor, name, device);
    table.add(name, view.data(), kind_of(view, name), view.shape());
  }
  return table;
}

WeightKind kind_on_gpu(const py::dict& weights, const std::string& device,
                       const std::string& tokens) {
  const auto kind = kind_of(TensorView::of(weights[tokens.c_str()], tokens, device), tokens);
  CHECK(kind && !is_quantized(*kind), tokens, " must hold floating-point numbers");
  return *kind;
}

WeightKind cache_kind_on_gpu(const std::string& cache, WeightKind kind) {
  CHECK(cache.empty() || cache == "float8_e4m3fn",
        "cache must be \"\" or float8_e4m3fn on a GPU, got ", cache);
  return cache.empty() ? kind : WeightKind::float8;
}

}  // namespace decoding
