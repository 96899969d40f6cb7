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
#include "kernels/linear.h"

namespace decoding {

// Tensors by name; the names are those of models/weights.py.
class WeightTable {
 public:
  void add(const std::string& name, const float* data, std::vector<int64_t> shape) {
    tensors_[name] = {data, std::move(shape)};
  }

  bool has(const std::string& name) const { return tensors_.count(name) > 0; }

  const float* get(const std::string& name, const std::vector<int64_t>& shape) const {
    const auto found = tensors_.find(name);
    CHECK(found != tensors_.end(), "the weights lack ", name);
    CHECK(found->second.shape == shape, name, " has another shape than its spec says");
    return found->second.data;
  }

 private:
  struct Tensor {
    const float* data;
    std::vector<int64_t> shape;
  };
  std::map<std::string, Tensor> tensors_;
};

struct Norm {
  const float* gamma = nullptr;  // [H]
  const float* beta = nullptr;   // [H]
};

struct Linear {
  LinearWeight weight;
  const float* bias = nullptr;  // [outputs], may be null
};

struct LayerWeights {
  Norm self_norm, cross_norm, feed_forward_norm;
  Linear qkv, self_out;                 // self-attention
  Linear cross_q, cross_kv, cross_out;  // only in a decoder with an encoder
  Linear up, down;                      // feed-forward
};

struct StackWeights {
  const float* tokens;     // [V, H]
  const float* positions;  // [positions, H]
  Norm embed_norm, norm;   // gamma null where the spec has none
  std::vector<LayerWeights> layers;
};

struct ModelWeights {
  std::optional<StackWeights> encoder;
  StackWeights decoder;
  Linear output;
};

inline Norm load_norm(const WeightTable& table, const std::string& name, int hidden) {
  return {table.get(name + ".weight", {hidden}), table.get(name + ".bias", {hidden})};
}

inline Linear load_linear(const WeightTable& table, const std::string& name, int outputs,
                          int inputs) {
  const int panels = (outputs + kPanel - 1) / kPanel;
  const float* data = table.get(name + ".weight", {panels, inputs, kPanel});
  const std::string bias = name + ".bias";
  return {{.data = data, .outputs = outputs, .inputs = inputs},
          table.has(bias) ? table.get(bias, {outputs}) : nullptr};
}

inline LayerWeights load_layer(const WeightTable& table, const std::string& name,
                               const StackSpec& spec, const StackSpec* encoder) {
  const int inner = spec.heads * spec.head_dim;
  LayerWeights layer;
  layer.self_norm = load_norm(table, name + ".self_attention.norm", spec.hidden);
  layer.qkv = load_linear(table, name + ".self_attention.qkv", 3 * inner, spec.hidden);
  layer.self_out = load_linear(table, name + ".self_attention.out", spec.hidden, inner);
  if (encoder != nullptr) {
    layer.cross_norm = load_norm(table, name + ".cross_attention.norm", spec.hidden);
    layer.cross_q = load_linear(table, name + ".cross_attention.q", inner, spec.hidden);
    layer.cross_kv = load_linear(table, name + ".cross_attention.kv", 2 * inner, encoder->hidden);
    layer.cross_out = load_linear(table, name + ".cross_attention.out", spec.hidden, inner);
  }
  layer.feed_forward_norm = load_norm(table, name + ".feed_forward.norm", spec.hidden);
  layer.up = load_linear(table, name + ".feed_forward.up", spec.ffn, spec.hidden);
  layer.down = load_linear(table, name + ".feed_forward.down", spec.hidden, spec.ffn);
  return layer;
}

inline StackWeights load_stack(const WeightTable& table, const std::string& name,
                               const StackSpec& spec, const StackSpec* encoder) {
  StackWeights stack;
  stack.tokens = table.get(name + ".embed.tokens", {spec.vocab, spec.hidden});
  stack.positions = table.get(name + ".embed.positions", {spec.positions, spec.hidden});
  if (spec.embed_norm) stack.embed_norm = load_norm(table, name + ".embed.norm", spec.hidden);
  for (int i = 0; i < spec.layers; ++i) {
    stack.layers.push_back(load_layer(table, name + ".layers." + std::to_string(i), spec, encoder));
  }
  if (spec.final_norm) stack.norm = load_norm(table, name + ".norm", spec.hidden);
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
