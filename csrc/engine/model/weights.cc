#include "engine/model/weights.h"

#include <utility>

#include "core/check.h"
#include "kernels/linear/linear.h"

namespace decoding {
namespace {

void check_shape(const std::string& name, const std::vector<int64_t>& shape,
                 const std::vector<int64_t>& expected) {
  CHECK(shape == expected, name, " has another shape than its spec says");
}

}  // namespace

void WeightTable::add(const std::string& name, const void* data, std::optional<WeightKind> kind,
                      std::vector<int64_t> shape) {
  tensors_[name] = {data, kind, std::move(shape)};
}

const float* WeightTable::vector(const std::string& name, int size) const {
  return numbers(name, {size});
}

const float* WeightTable::vector_or_null(const std::string& name, int size) const {
  return tensors_.count(name) > 0 ? vector(name, size) : nullptr;
}

const float* WeightTable::numbers(const std::string& name,
                                  const std::vector<int64_t>& shape) const {
  return static_cast<const float*>(get(name, WeightKind::float32, shape).data);
}

const void* WeightTable::positions(const std::string& name, int rows, int columns) const {
  if (tensors_.count(name) == 0) return nullptr;
  return get(name, only_.value_or(WeightKind::float32), {rows, columns}).data;
}

TokenTable WeightTable::tokens(const std::string& name, int rows, int columns) const {
  const Tensor& table = get(name);
  const WeightKind kind = matrix_kind(name, table);
  const bool panels = table.shape.size() == 3;
  CHECK(!is_quantized(kind), name, " must not be quantized");
  check_shape(name, table.shape, panels ? panel_shape(rows, columns, kind) : Shape{rows, columns});
  return {.data = table.data, .kind = kind, .panels = panels};
}

LinearWeight WeightTable::linear(const std::string& name, int outputs, int inputs) const {
  const Tensor& weight = get(name + ".weight");
  const WeightKind kind = matrix_kind(name, weight);
  const bool quantized = is_quantized(kind);
  check_shape(name, weight.shape,
              only_ ? Shape{outputs, quantized ? quantized_stride(inputs) : inputs}
                    : panel_shape(outputs, inputs, kind));
  LinearWeight linear{.data = weight.data, .kind = kind, .outputs = outputs, .inputs = inputs};
  if (quantized) linear.scale = vector(name + ".scale", outputs);
  if (quantized && !only_) {
    linear.sums = static_cast<const int32_t*>(get(name + ".sums", std::nullopt, {outputs}).data);
  }
  return linear;
}

const WeightTable::Tensor& WeightTable::get(const std::string& name) const {
  const auto found = tensors_.find(name);
  CHECK(found != tensors_.end(), "the weights lack ", name);
  return found->second;
}

const WeightTable::Tensor& WeightTable::get(const std::string& name, std::optional<WeightKind> kind,
                                            const Shape& shape) const {
  const Tensor& tensor = get(name);
  check_shape(name, tensor.shape, shape);
  CHECK(tensor.kind == kind, name, " has another type than it must have");
  return tensor;
}

WeightKind WeightTable::matrix_kind(const std::string& name, const Tensor& tensor) const {
  CHECK(tensor.kind, name, " must not be int32");
  CHECK(only_ ? tensor.kind == only_ || (is_quantized(*tensor.kind) && only_ != WeightKind::float32)
              : tensor.kind != WeightKind::float16 && tensor.kind != WeightKind::float8,
        name, " has another type than this device's weights");
  return *tensor.kind;
}

namespace {

Norm load_norm(const WeightTable& table, const std::string& name, const StackSpec& spec) {
  return {table.vector(name + ".weight", spec.hidden),
          table.vector_or_null(name + ".bias", spec.hidden), spec.eps, spec.rms};
}

// Of each head.
Norm load_head_norm(const WeightTable& table, const std::string& name, const StackSpec& spec) {
  return {table.vector(name + ".weight", spec.head_dim), nullptr, spec.eps, true};
}

Linear load_linear(const WeightTable& table, const std::string& name, int outputs, int inputs) {
  return {table.linear(name, outputs, inputs), table.vector_or_null(name + ".bias", outputs)};
}

void load_attention(const WeightTable& table, const std::string& layer, const StackSpec& spec,
                    int i, LayerWeights& to) {
  const std::string name = layer + ".self_attention";
  to.self_norm = load_norm(table, name + ".norm", spec);
  to.qkv = load_linear(table, name + ".qkv", spec.qkv(i), spec.hidden);
  to.self_out = load_linear(table, name + ".out", spec.hidden, spec.inner(i));
  if (spec.post_norm) to.self_post = load_norm(table, name + ".post_norm", spec);
  if (!spec.head_norm) return;
  to.q_norm = load_head_norm(table, name + ".q_norm", spec);
  to.k_norm = load_head_norm(table, name + ".k_norm", spec);
}

void load_convolution(const WeightTable& table, const std::string& layer, const StackSpec& spec,
                      int i, LayerWeights& to) {
  const std::string name = layer + ".convolution";
  const ConvolutionSpec& convolution = *spec.convolution;
  const int inner = spec.inner(i), heads = spec.heads[i], kernel_size = convolution.kernel_sizes[i];
  to.self_norm = load_norm(table, name + ".norm", spec);
  to.input =
      load_linear(table, name + ".input", convolution.gated ? 2 * inner : inner, spec.hidden);
  if (convolution.dynamic) {
    to.conv_scores = load_linear(table, name + ".kernel", heads * kernel_size, inner);
  } else {
    to.conv_weights = table.numbers(name + ".kernel", {heads, kernel_size});
  }
  to.self_out = load_linear(table, name + ".out", spec.hidden, inner);
  if (spec.post_norm) to.self_post = load_norm(table, name + ".post_norm", spec);
}

void load_cross_attention(const WeightTable& table, const std::string& layer, const StackSpec& spec,
                          int i, int memory, LayerWeights& to) {
  const std::string name = layer + ".cross_attention";
  to.cross_norm = load_norm(table, name + ".norm", spec);
  to.cross_q = load_linear(table, name + ".q", spec.inner(i), spec.hidden);
  to.cross_kv = load_linear(table, name + ".kv", 2 * spec.kv_inner(i), memory);
  to.cross_out = load_linear(table, name + ".out", spec.hidden, spec.inner(i));
  if (spec.post_norm) to.cross_post = load_norm(table, name + ".post_norm", spec);
}

void load_feed_forward(const WeightTable& table, const std::string& layer, const StackSpec& spec,
                       int i, LayerWeights& to) {
  const std::string name = layer + ".feed_forward";
  if (!spec.shared_norm) to.feed_forward_norm = load_norm(table, name + ".norm", spec);
  to.up = load_linear(table, name + ".up", (spec.gated ? 2 : 1) * spec.ffn[i], spec.hidden);
  to.down = load_linear(table, name + ".down", spec.hidden, spec.ffn[i]);
  if (spec.post_norm) to.feed_forward_post = load_norm(table, name + ".post_norm", spec);
}

}  // namespace

StackWeights load_stack(const WeightTable& table, const std::string& name, const StackSpec& spec,
                        const StackSpec* encoder) {
  StackWeights stack;
  stack.tokens = table.tokens(name + ".embed.tokens", spec.tokens, spec.hidden);
  stack.tokens.first = spec.first_token;
  stack.tokens.count = spec.tokens;
  stack.positions =
      table.positions(name + ".embed.positions", spec.types * spec.positions, spec.hidden);
  if (spec.rotary) {
    stack.rotary = table.numbers(name + ".rotary", {spec.rotary->tables, spec.rotary->size / 2});
  }
  if (spec.position_bias == PositionBias::alibi) {
    stack.position_bias = table.vector(name + ".position_bias", spec.heads[0]);
  } else if (spec.position_bias == PositionBias::relative) {
    std::vector<int64_t> shape = {spec.heads[0], 2 * spec.reach + 1};
    if (spec.bias_by_layer) shape.insert(shape.begin(), spec.layers);
    stack.position_bias = table.numbers(name + ".position_bias", shape);
  }
  if (spec.embed_norm) stack.embed_norm = load_norm(table, name + ".embed.norm", spec);
  for (int i = 0; i < spec.layers; ++i) {
    const std::string layer = name + ".layers." + std::to_string(i);
    LayerWeights& to = stack.layers.emplace_back();
    spec.convolution ? load_convolution(table, layer, spec, i, to)
                     : load_attention(table, layer, spec, i, to);
    if (encoder != nullptr) load_cross_attention(table, layer, spec, i, encoder->hidden, to);
    load_feed_forward(table, layer, spec, i, to);
  }
  if (spec.final_norm) stack.norm = load_norm(table, name + ".norm", spec);
  return stack;
}

ModelWeights load_weights(const WeightTable& table, const ModelSpec& spec) {
  ModelWeights weights;
  const StackSpec* encoder = spec.encoder ? &*spec.encoder : nullptr;
  if (encoder != nullptr) weights.encoder = load_stack(table, "encoder", *encoder, nullptr);
  weights.decoder = load_stack(table, "decoder", spec.decoder, encoder);
  weights.output = load_linear(table, "output", spec.decoder.tokens, spec.decoder.hidden);
  return weights;
}

}  // namespace decoding
