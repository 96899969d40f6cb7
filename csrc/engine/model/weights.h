// The weights of a model as the engine uses them: pointers into tensors that Python keeps alive.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/spec.h"
#include "core/types.h"
#include "kernels/rows/embed.h"

namespace decoding {

// Tensors by name; the names are those of models/weights/placed.py. A tensor that is missing, or
// has another shape or type than its reader asks for, throws Error.
class WeightTable {
 public:
  // only: the kind of all matrices on a GPU, where linear weights may be quantized beside 16 bits.
  // None: packed for the CPU, each linear weight of a kind of its own, the token tables float32 or
  // bfloat16, the position tables float32.
  explicit WeightTable(std::optional<WeightKind> only) : only_(only) {}

  // kind: none for int32, the type of the sums of an int8 weight.
  void add(const std::string& name, const void* data, std::optional<WeightKind> kind,
           std::vector<int64_t> shape);

  const float* vector(const std::string& name, int size) const;
  const float* vector_or_null(const std::string& name, int size) const;
  const float* numbers(const std::string& name, const std::vector<int64_t>& shape) const;
  // Null: the model has none.
  const void* positions(const std::string& name, int rows, int columns) const;
  TokenTable tokens(const std::string& name, int rows, int columns) const;
  LinearWeight linear(const std::string& name, int outputs, int inputs) const;

 private:
  using Shape = std::vector<int64_t>;
  struct Tensor {
    const void* data;
    std::optional<WeightKind> kind;
    Shape shape;
  };

  const Tensor& get(const std::string& name) const;
  const Tensor& get(const std::string& name, std::optional<WeightKind> kind,
                    const Shape& shape) const;
  WeightKind matrix_kind(const std::string& name, const Tensor& tensor) const;

  std::optional<WeightKind> only_;
  std::map<std::string, Tensor> tensors_;
};

struct Linear {
  LinearWeight weight;
  const float* bias = nullptr;  // [outputs], may be null
};

struct LayerWeights {
  Norm self_norm, cross_norm, feed_forward_norm;
  Norm self_post, cross_post, feed_forward_post;  // after the blocks; none where the spec has none
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

StackWeights load_stack(const WeightTable& table, const std::string& name, const StackSpec& spec,
                        const StackSpec* encoder);
ModelWeights load_weights(const WeightTable& table, const ModelSpec& spec);

}  // namespace decoding
