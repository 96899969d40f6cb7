// The weights of a model as the engine uses them: pointers into tensors that Python keeps alive.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/spec.h"
#include "core/types.h"
#include "kernels/linear/linear.h"
#include "kernels/rows/embed.h"

namespace decoding {

// Tensors by name; the names are those of models/weights/placed.py.
class WeightTable {
 public:
  // only: the kind of all matrices on a GPU. None: packed for the CPU, each linear weight of a kind
  // of its own, the token tables float32 or bfloat16, the position tables float32.
  explicit WeightTable(std::optional<WeightKind> only) : only_(only) {}

  // kind: none for int32, which the sums of an int8 weight are.
  void add(const std::string& name, const void* data, std::optional<WeightKind> kind,
           std::vector<int64_t> shape) {
    tensors_[name] = {data, kind, std::move(shape)};
  }

  const float* vector(const std::string& name, int size) const {
    return static_cast<const float*>(get(name, WeightKind::float32, {size}).data);
  }
  const float* numbers(const std::string& name, const std::vector<int64_t>& shape) const {
    return static_cast<const float*>(get(name, WeightKind::float32, shape).data);
  }
  const float* vector_or_null(const std::string& name, int size) const {
    return tensors_.count(name) > 0 ? vector(name, size) : nullptr;
  }

  // Null: the model has none.
  const void* positions(const std::string& name, int rows, int columns) const {
    if (tensors_.count(name) == 0) return nullptr;
    return get(name, only_.value_or(WeightKind::float32), {rows, columns}).data;
  }

  TokenTable tokens(const std::string& name, int rows, int columns) const {
    const Tensor& table = get(name);
    const WeightKind kind = kind_of(name, table);
    const bool panels = table.shape.size() == 3;
    CHECK(kind != WeightKind::int8, name, " must not be int8");
    check_shape(name, table, panels ? panel_shape(rows, columns, kind) : Shape{rows, columns});
    return {table.data, kind, panels};
  }

  LinearWeight linear(const std::string& name, int outputs, int inputs) const {
    const Tensor& weight = get(name + ".weight");
    const WeightKind kind = kind_of(name, weight);
    check_shape(name, weight, only_ ? Shape{outputs, inputs} : panel_shape(outputs, inputs, kind));
    LinearWeight linear{.data = weight.data, .kind = kind, .outputs = outputs, .inputs = inputs};
    if (kind == WeightKind::int8) {
      linear.scale = vector(name + ".scale", outputs);
      linear.sums = static_cast<const int32_t*>(get(name + ".sums", std::nullopt, {outputs}).data);
    }
    return linear;
  }

 private:
  using Shape = std::vector<int64_t>;
  struct Tensor {
    const void* data;
    std::optional<WeightKind> kind;
    Shape shape;
  };

  const Tensor& get(const std::string& name) const {
    const auto found = tensors_.find(name);
    CHECK(found != tensors_.end(), "the weights lack ", name);
    return found->second;
  }

  const Tensor& get(const std::string& name, std::optional<WeightKind> kind,
                    const Shape& shape) const {
    const Tensor& tensor = get(name);
    check_shape(name, tensor, shape);
    CHECK(tensor.kind == kind, name, " has another type than it must have");
    return tensor;
  }

  // Of a matrix.
  WeightKind kind_of(const std::string& name, const Tensor& tensor) const {
    CHECK(tensor.kind, name, " must not be int32");
    CHECK(only_ ? tensor.kind == only_ : tensor.kind != WeightKind::float16, name,
          " has another type than this device's weights");
    return *tensor.kind;
  }

  static void check_shape(const std::string& name, const Tensor& tensor, const Shape& shape) {
    CHECK(tensor.shape == shape, name, " has another shape than its spec says");
  }

  std::optional<WeightKind> only_;
  std::map<std::string, Tensor> tensors_;
};

struct Linear {
  LinearWeight weight;
  const float* bias = nullptr;  // [outputs], may be null
};

struct LayerWeights {
  Norm self_norm, cross_norm, feed_forward_norm;
  Norm self_post, cross_post, feed_forward_post;  // behind the blocks; none where the spec has none
  Norm q_norm, k_norm;                            // of heads; none where the spec has none
  Linear qkv, self_out;                           // self-attention; self_out of convolutions too
  Linear input, conv_scores;                      // convolution; conv_scores where it is dynamic,
  const float* conv_weights = nullptr;            // else [N, kernel_size]
  Linear cross_q, cross_kv, cross_out;            // only in a decoder with an encoder
  Linear up, down;                                // feed-forward
};

struct StackWeights {
  TokenTable tokens;
  const void* positions;                 // [positions, H], null without a position table
  const float* rotary = nullptr;         // [tables, size / 2], null without rotary positions
  const float* position_bias = nullptr;  // [N] or [N, 2 * reach + 1], by layer [L, N, ...], or null
  Norm embed_norm, norm;                 // none where the spec has none
  std::vector<LayerWeights> layers;
};

struct ModelWeights {
  std::optional<StackWeights> encoder;
  StackWeights decoder;
  Linear output;
};

inline Norm load_norm(const WeightTable& table, const std::string& name, const StackSpec& spec) {
  return {table.vector(name + ".weight", spec.hidden),
          table.vector_or_null(name + ".bias", spec.hidden), spec.eps, spec.rms};
}

// Of each head.
inline Norm load_head_norm(const WeightTable& table, const std::string& name,
                           const StackSpec& spec) {
  return {table.vector(name + ".weight", spec.head_dim), nullptr, spec.eps, true};
}

inline Linear load_linear(const WeightTable& table, const std::string& name, int outputs,
                          int inputs) {
  return {table.linear(name, outputs, inputs), table.vector_or_null(name + ".bias", outputs)};
}

inline void load_attention(const WeightTable& table, const std::string& layer,
                           const StackSpec& spec, int i, LayerWeights& to) {
  const std::string name = layer + ".self_attention";
  to.self_norm = load_norm(table, name + ".norm", spec);
  to.qkv = load_linear(table, name + ".qkv", spec.qkv(i), spec.hidden);
  to.self_out = load_linear(table, name + ".out", spec.hidden, spec.inner(i));
  if (spec.post_norm) to.self_post = load_norm(table, name + ".post_norm", spec);
  if (!spec.head_norm) return;
  to.q_norm = load_head_norm(table, name + ".q_norm", spec);
  to.k_norm = load_head_norm(table, name + ".k_norm", spec);
}

inline void load_convolution(const WeightTable& table, const std::string& layer,
                             const StackSpec& spec, int i, LayerWeights& to) {
  const std::string name = layer + ".convolution";
  const ConvolutionSpec& convolution = *spec.convolution;
  const int inner = spec.inner(i), heads = spec.heads[i], kernel_size = convolution.taps[i];
  to.self_norm = load_norm(table, name + ".norm", spec);
  to.input =
      load_linear(table, name + ".input", convolution.gated ? 2 * inner : inner, spec.hidden);
  if (convolution.dynamic) {
    to.conv_scores = load_linear(table, name + ".taps", heads * kernel_size, inner);
  } else {
    to.conv_weights = table.numbers(name + ".taps", {heads, kernel_size});
  }
  to.self_out = load_linear(table, name + ".out", spec.hidden, inner);
  if (spec.post_norm) to.self_post = load_norm(table, name + ".post_norm", spec);
}

inline void load_cross_attention(const WeightTable& table, const std::string& layer,
                                 const StackSpec& spec, int i, int memory, LayerWeights& to) {
  const std::string name = layer + ".cross_attention";
  to.cross_norm = load_norm(table, name + ".norm", spec);
  to.cross_q = load_linear(table, name + ".q", spec.inner(i), spec.hidden);
  to.cross_kv = load_linear(table, name + ".kv", 2 * spec.kv_inner(i), memory);
  to.cross_out = load_linear(table, name + ".out", spec.hidden, spec.inner(i));
  if (spec.post_norm) to.cross_post = load_norm(table, name + ".post_norm", spec);
}

inline void load_feed_forward(const WeightTable& table, const std::string& layer,
                              const StackSpec& spec, int i, LayerWeights& to) {
  const std::string name = layer + ".feed_forward";
  if (!spec.shared_norm) to.feed_forward_norm = load_norm(table, name + ".norm", spec);
  to.up = load_linear(table, name + ".up", (spec.gated ? 2 : 1) * spec.ffn[i], spec.hidden);
  to.down = load_linear(table, name + ".down", spec.hidden, spec.ffn[i]);
  if (spec.post_norm) to.feed_forward_post = load_norm(table, name + ".post_norm", spec);
}

inline StackWeights load_stack(const WeightTable& table, const std::string& name,
                               const StackSpec& spec, const StackSpec* encoder) {
  StackWeights stack;
  stack.tokens = table.tokens(name + ".embed.tokens", spec.vocab, spec.hidden);
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

inline ModelWeights load_weights(const WeightTable& table, const ModelSpec& spec) {
  ModelWeights weights;
  const StackSpec* encoder = spec.encoder ? &*spec.encoder : nullptr;
  if (encoder != nullptr) weights.encoder = load_stack(table, "encoder", *encoder, nullptr);
  weights.decoder = load_stack(table, "decoder", spec.decoder, encoder);
  weights.output = load_linear(table, "output", spec.decoder.vocab, spec.decoder.hidden);
  return weights;
}

}  // namespace decoding
