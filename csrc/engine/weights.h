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
  // kind: of all matrices; vectors are float32. panels: whether linear weights are packed for the
  // CPU (kernels/linear.h).
  WeightTable(WeightKind kind, bool panels) : kind_(kind), panels_(panels) {}

  void add(const std::string& name, const void* data, WeightKind kind, std::vector<int64_t> shape) {
    tensors_[name] = {data, kind, std::move(shape)};
  }

  WeightKind kind() const { return kind_; }
  bool has(const std::string& name) const { return tensors_.count(name) > 0; }

  const float* vector(const std::string& name, int size) const {
    return static_cast<const float*>(get(name, WeightKind::float32, {size}));
  }
  const void* table(const std::string& name, int rows, int columns) const {
    return get(name, kind_, {rows, columns});
  }
  const void* linear(const std::string& name, int outputs, int inputs) const {
    const int panels = (outputs + kPanel - 1) / kPanel;
    if (panels_) return get(name, kind_, {panels, inputs, kPanel});
    return get(name, kind_, {outputs, inputs});
  }

 private:
  struct Tensor {
    const void* data;
    WeightKind kind;
    std::vector<int64_t> shape;
  };

  const void* get(const std::string& name, WeightKind kind,
                  const std::vector<int64_t>& shape) const {
    const auto found = tensors_.find(name);
    CHECK(found != tensors_.end(), "the weights lack ", name);
    CHECK(found->second.shape == shape, name, " has another shape than its spec says");
    CHECK(found->second.kind == kind, name, " has another type than the weights beside it");
    return found->second.data;
  }

  WeightKind kind_;
  bool panels_;
  std::map<std::string, Tensor> tensors_;
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
  const void* tokens;     // [V, H]
  const void* positions;  // [positions, H]
  Norm embed_norm, norm;  // none where the spec has none
  std::vector<LayerWeights> layers;
};

struct ModelWeights {
  std::optional<StackWeights> encoder;
  StackWeights decoder;
  Linear output;
};

inline Norm load_norm(const WeightTable& table, const std::string& name, const StackSpec& spec) {
  return {table.vector(name + ".weight", spec.hidden), table.vector(name + ".bias", spec.hidden),
          spec.eps};
}

inline Linear load_linear(const WeightTable& table, const std::string& name, int outputs,
                          int inputs) {
  const std::string bias = name + ".bias";
  return {{.data = table.linear(name + ".weight", outputs, inputs),
           .kind = table.kind(),
           .outputs = outputs,
           .inputs = inputs},
          table.has(bias) ? table.vector(bias, outputs) : nullptr};
}

inline LayerWeights load_layer(const WeightTable& table, const std::string& name,
                               const StackSpec& spec, const StackSpec* encoder) {
  const int inner = spec.heads * spec.head_dim;
  LayerWeights layer;
  layer.self_norm = load_norm(table, name + ".self_attention.norm", spec);
  layer.qkv = load_linear(table, name + ".self_attention.qkv", 3 * inner, spec.hidden);
  layer.self_out = load_linear(table, name + ".self_attention.out", spec.hidden, inner);
  if (encoder != nullptr) {
    layer.cross_norm = load_norm(table, name + ".cross_attention.norm", spec);
    layer.cross_q = load_linear(table, name + ".cross_attention.q", inner, spec.hidden);
    layer.cross_kv = load_linear(table, name + ".cross_attention.kv", 2 * inner, encoder->hidden);
    layer.cross_out = load_linear(table, name + ".cross_attention.out", spec.hidden, inner);
  }
  layer.feed_forward_norm = load_norm(table, name + ".feed_forward.norm", spec);
  layer.up = load_linear(table, name + ".feed_forward.up", spec.ffn, spec.hidden);
  layer.down = load_linear(table, name + ".feed_forward.down", spec.hidden, spec.ffn);
  return layer;
}

inline StackWeights load_stack(const WeightTable& table, const std::string& name,
                               const StackSpec& spec, const StackSpec* encoder) {
  StackWeights stack;
  stack.tokens = table.table(name + ".embed.tokens", spec.vocab, spec.hidden);
  stack.positions = table.table(name + ".embed.positions", spec.positions, spec.hidden);
  if (spec.embed_norm) stack.embed_norm = load_norm(table, name + ".embed.norm", spec);
  for (int i = 0; i < spec.layers; ++i) {
    stack.layers.push_back(load_layer(table, name + ".layers." + std::to_string(i), spec, encoder));
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
